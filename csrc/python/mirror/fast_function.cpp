#include "python/mirror/fast_function.h"

#include <pybind11/stl.h>
#include <structmember.h>

#include <algorithm>

#include "python/call/bind.h"
#include "python/call/fastcall.h"
#include "python/mirror/native.h"

namespace pynccl::python::mirror {
namespace {

PyTypeObject* function_type;

// The Python object, laid out like functools.lru_cache's.
struct Callable {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* wrapped;  // the Python function
  PyObject* dictionary;
  PyObject* weakrefs;
  const FastFunction* function;  // owned
};

Callable& callable(PyObject* self) { return *reinterpret_cast<Callable*>(self); }

PyObject* call_fast(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  const Callable& object = callable(self);
  const FastFunction& function = *object.function;
  Parameters::Values values;
  const auto nargs = static_cast<std::size_t>(PyVectorcall_NARGS(nargsf));
  if (function.parameters().match(args, nargs, kwnames, values)) [[likely]] {
    PyObject* result = guarded([&] { return function.spec().body(function, values.data()); });
    if (result != fallback()) [[likely]]
      return result;
  }
  return PyObject_Vectorcall(object.wrapped, args, nargsf, kwnames);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(callable(self).wrapped);
  Py_VISIT(callable(self).dictionary);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(callable(self).wrapped);
  Py_CLEAR(callable(self).dictionary);
  return 0;
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (callable(self).weakrefs) PyObject_ClearWeakRefs(self);
  clear(self);
  delete callable(self).function;
  type->tp_free(self);
  Py_DECREF(type);
}

// Binds to an instance, like a function in a class.
PyObject* bind_to(PyObject* self, PyObject* instance, PyObject*) {
  return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

PyObject* repr_fast(PyObject* self) {
  return PyUnicode_FromFormat("<function pynccl.%U>", callable(self).function->name());
}

// Pickled and copied by name, like functions.
PyObject* reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

const FastSpec& spec_of(const std::string& name) {
  for (const std::span<const FastSpec> specs : {one_tensor_specs(), p2p_specs()})
    for (const FastSpec& spec : specs)
      if (name == spec.name) return spec;
  throw_value_error("fast", "there is no fast function for ", name, "()");
}

py::object fast(const py::function& function) {
  const FastSpec& spec = spec_of(py::cast<std::string>(function.attr("__name__")));
  auto attached = std::make_unique<const FastFunction>(spec, function);
  auto wrapper = py::reinterpret_steal<py::object>(function_type->tp_alloc(function_type, 0));
  if (!wrapper) throw py::error_already_set();
  Callable& object = callable(wrapper.ptr());
  object.vectorcall = &call_fast;
  object.wrapped = Py_NewRef(function.ptr());
  object.function = attached.release();
  return py::module_::import("functools").attr("update_wrapper")(wrapper, function);
}

// Returns a reference that is never released.
PyTypeObject* immortal(const py::type& type) {
  return reinterpret_cast<PyTypeObject*>(py::type(type).release().ptr());
}

void set_work_class(const py::type& work) { classes.work = immortal(work); }

void set_group_classes(const py::type& tensor, const py::type& group, const py::list& operators) {
  classes.tensor = immortal(tensor);
  classes.group = immortal(group);
  classes.operators.clear();
  for (const py::handle item : operators) {
    const auto pair = py::cast<py::tuple>(item);
    classes.operators.emplace_back(py::object(pair[0]).release().ptr(),
                                   py::object(pair[1]).release().ptr());
  }
}

}  // namespace

Parameters::Parameters(const py::function& function, const Expected& expected) {
  const py::object code = function.attr("__code__");
  const py::tuple variables = code.attr("co_varnames");
  count_ = py::cast<std::size_t>(code.attr("co_argcount"));
  const auto known = std::find_if(expected.begin(), expected.end(),
                                  [](const Parameter& one) { return !one.name; });
  std::size_t found = 0;
  for (std::size_t i = 0; i < count_ && i < kMost; ++i) {
    const auto name = py::cast<std::string>(variables[i]);
    const auto parameter = std::find_if(expected.begin(), known,
                                        [&](const Parameter& one) { return name == one.name; });
    if (parameter == known) break;
    names_[i] = PyUnicode_InternFromString(parameter->name);
    indices_[i] = parameter->index;
    ++found;
  }
  if (found != count_ || known - expected.begin() != static_cast<std::ptrdiff_t>(found))
    throw py::type_error("fast: " + py::cast<std::string>(function.attr("__name__")) +
                         "() does not have the parameters of the fast function");
}

bool Parameters::match(PyObject* const* args, std::size_t nargs, PyObject* kwnames,
                       Values& values) const {
  if (nargs > count_) [[unlikely]]
    return false;
  values.fill(nullptr);
  for (std::size_t i = 0; i < nargs; ++i) values[indices_[i]] = args[i];
  if (!kwnames) return true;
  const auto keywords = static_cast<std::size_t>(PyTuple_GET_SIZE(kwnames));
  for (std::size_t k = 0; k < keywords; ++k) {
    PyObject* keyword = PyTuple_GET_ITEM(kwnames, k);
    std::size_t i = nargs;  // a positional argument cannot be passed again by keyword
    while (i < count_ && names_[i] != keyword) ++i;
    if (i == count_ || values[indices_[i]]) [[unlikely]]
      return false;
    values[indices_[i]] = args[nargs + k];
  }
  return true;
}

FastFunction::FastFunction(const FastSpec& spec, const py::function& function)
    : spec_(spec), name_(function.attr("__name__")), parameters_(function, spec.parameters) {}

const FastFunction* FastFunction::in(PyObject* object) {
  return Py_TYPE(object) == function_type ? callable(object).function : nullptr;
}

void bind_fast_function(py::module_& m) {
  static PyMethodDef methods[] = {{"__reduce__", &reduce, METH_NOARGS, nullptr}, {}};
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callable, vectorcall), READONLY, nullptr},
      {"__dictoffset__", T_PYSSIZET, offsetof(Callable, dictionary), READONLY, nullptr},
      {"__weaklistoffset__", T_PYSSIZET, offsetof(Callable, weakrefs), READONLY, nullptr},
      {}};
  static PyGetSetDef properties[] = {
      {"__dict__", &PyObject_GenericGetDict, &PyObject_GenericSetDict, nullptr, nullptr}, {}};
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, slot(&destroy)},   {Py_tp_traverse, slot(&traverse)},
      {Py_tp_clear, slot(&clear)},       {Py_tp_call, slot(&PyVectorcall_Call)},
      {Py_tp_descr_get, slot(&bind_to)}, {Py_tp_repr, slot(&repr_fast)},
      {Py_tp_methods, methods},          {Py_tp_members, members},
      {Py_tp_getset, properties},        {0, nullptr}};
  static PyType_Spec spec = {"pynccl._C.FastFunction", sizeof(Callable), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                                 Py_TPFLAGS_DISALLOW_INSTANTIATION,
                             slots};
  function_type = add_type(m, spec, "FastFunction");
  m.def("fast", &fast, py::arg("function"),
        R"(Wrap a Python function with the fast function of the same name.

The result keeps the function's signature, name and docstring. It handles the common case in C++ and
calls the Python function in every other case.

Raises:
    ValueError: there is no fast function of this name.
    TypeError: the function's parameters are not the ones that the fast function expects.)");
  m.def("set_work_class", &set_work_class, py::arg("work"),
        "Set the class of asynchronous operations, a subclass of _C.Work.");
  m.def("set_group_classes", &set_group_classes, py::arg("tensor"), py::arg("group"),
        py::arg("operators"),
        R"(Set the classes and operators that fast functions accept, before one is attached.

Args:
    tensor: torch.Tensor.
    group: the class of process groups, a subclass of _C.ProcessGroup.
    operators: pairs of an operator argument (torch's, a RedOp, an interned str) and the RedOp that
        it stands for; torch's SUM first.)");
}

}  // namespace pynccl::python::mirror
