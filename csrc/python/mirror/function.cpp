#include "python/mirror/function.h"

#include <structmember.h>

#include "python/call/fastcall.h"
#include "python/mirror/bind.h"
#include "python/mirror/names.h"
#include "python/mirror/native.h"

namespace pynccl::python::mirror {
namespace {

PyTypeObject* function_type;

// The object: what functools.lru_cache makes of a function is its model.
struct Callable {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* slow;
  PyObject* dictionary;
  PyObject* weakrefs;
  const Function* function;  // owned
};

Callable& callable(PyObject* self) { return *reinterpret_cast<Callable*>(self); }

PyObject* call(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  const Callable& object = callable(self);
  const Function& function = *object.function;
  Parameters::Values values;
  const auto nargs = static_cast<std::size_t>(PyVectorcall_NARGS(nargsf));
  if (function.parameters().match(args, nargs, kwnames, values)) [[likely]] {
    PyObject* result = function.form().body(function, values.data());
    if (result != declined()) [[likely]]
      return result;
  }
  return PyObject_Vectorcall(object.slow, args, nargsf, kwnames);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(callable(self).slow);
  Py_VISIT(callable(self).dictionary);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(callable(self).slow);
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

// As a function does in a class.
PyObject* bind_to(PyObject* self, PyObject* instance, PyObject*) {
  return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

PyObject* repr(PyObject* self) {
  return PyUnicode_FromFormat("<function pynccl.%U>", callable(self).function->name());
}

// By name, as functions are pickled and copied.
PyObject* reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

const Form& form_of(const std::string& name) {
  for (const std::span<const Form> forms : {one_tensor_forms(), p2p_forms()})
    for (const Form& form : forms)
      if (name == form.name) return form;
  throw py::value_error("function: there is no fast " + name + "()");
}

py::object fast(const py::function& slow) {
  const py::object name = slow.attr("__name__");
  const Form& form = form_of(py::cast<std::string>(name));
  auto made = py::reinterpret_steal<py::object>(function_type->tp_alloc(function_type, 0));
  if (!made) throw py::error_already_set();
  Callable& object = callable(made.ptr());
  object.vectorcall = &call;
  object.slow = Py_NewRef(slow.ptr());
  object.function = new Function(form, name);
  return py::module_::import("functools").attr("update_wrapper")(made, slow);
}

void set_names(PyTypeObject* tensor, PyTypeObject* work, PyTypeObject* group,
               const py::list& operators) {
  names.tensor = tensor;
  names.work = work;
  names.group = group;
  for (std::size_t i = 0; i < names.operators.size(); ++i) {
    const auto pair = py::cast<py::tuple>(operators[i]);
    names.operators[i] = {py::object(pair[0]).release().ptr(), py::object(pair[1]).release().ptr()};
  }
}

}  // namespace

Parameters::Parameters(const Names& in_order) {
  for (const char* name : in_order) {
    if (!name) break;
    names_[count_++] = PyUnicode_InternFromString(name);
  }
}

bool Parameters::match(PyObject* const* args, std::size_t nargs, PyObject* kwnames,
                       Values& values) const {
  if (nargs > count_) [[unlikely]]
    return false;
  for (std::size_t i = 0; i < count_; ++i) values[i] = i < nargs ? args[i] : nullptr;
  if (!kwnames) return true;
  const auto keywords = static_cast<std::size_t>(PyTuple_GET_SIZE(kwnames));
  for (std::size_t k = 0; k < keywords; ++k) {
    PyObject* keyword = PyTuple_GET_ITEM(kwnames, k);
    std::size_t i = nargs;  // what was given by position cannot be given again
    while (i < count_ && names_[i] != keyword) ++i;
    if (i == count_ || values[i]) [[unlikely]]
      return false;
    values[i] = args[nargs + k];
  }
  return true;
}

const Function* Function::in(PyObject* object) {
  return Py_TYPE(object) == function_type ? callable(object).function : nullptr;
}

void bind_function(py::module_& m) {
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
      {Py_tp_descr_get, slot(&bind_to)}, {Py_tp_repr, slot(&repr)},
      {Py_tp_methods, methods},          {Py_tp_members, members},
      {Py_tp_getset, properties},        {0, nullptr}};
  static PyType_Spec spec = {"pynccl._C.Function", sizeof(Callable), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                                 Py_TPFLAGS_DISALLOW_INSTANTIATION,
                             slots};
  function_type = add_type(m, spec, "Function");
  m.def("fast", &fast, py::arg("function"),
        R"(Put the fast function of this name before one in Python.

What comes back has everything of the function: its signature, name and documentation. It does what
is common by itself and calls the function for the rest.)");
  m.def(
      "set_names",
      [](const py::type& tensor, const py::type& work, const py::type& group,
         const py::list& operators) {
        const auto type = [](const py::type& object) {
          return reinterpret_cast<PyTypeObject*>(py::type(object).release().ptr());
        };
        set_names(type(tensor), type(work), type(group), operators);
      },
      py::arg("tensor"), py::arg("work"), py::arg("group"), py::arg("operators"),
      R"(Tell the fast functions what Python's classes are.

Args:
    tensor: torch.Tensor.
    work: the class of what asynchronous operations return, of _C.Work.
    group: the class of process groups, of _C.ProcessGroup.
    operators: pairs of a torch operator and the RedOp that it is; five, SUM first.)");
}

}  // namespace pynccl::python::mirror
