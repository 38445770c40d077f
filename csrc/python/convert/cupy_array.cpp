#include "python/convert/cupy_array.h"

#include <dlpack/dlpack.h>

#include "python/call/modules.h"
#include "python/convert/integer.h"
#include "python/convert/numpy_array.h"

namespace pynccl::python::cupy_array {
namespace {

ModuleClass ndarray_class{"cupy", "ndarray"};
Name contiguous{"_c_contiguous"}, data{"data"}, device_id{"device_id"}, dtype{"dtype"}, ptr{"ptr"},
    size{"size"};
PyObject* get_current_stream = nullptr;  // CuPy's; set under the GIL, never released

// Calls the getter of a C attribute directly, which is faster than a generic attribute lookup.
py::object get(PyObject* object, Name& name) {
  PyObject* found = _PyType_Lookup(Py_TYPE(object), name.get());
  PyObject* value = nullptr;
  if (found && Py_IS_TYPE(found, &PyGetSetDescr_Type)) {
    const PyGetSetDef* definition = reinterpret_cast<PyGetSetDescrObject*>(found)->d_getset;
    value = definition->get(object, definition->closure);
  } else {
    value = PyObject_GetAttr(object, name.get());
  }
  if (!value) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

template <class T>
T integer(const char* argument, PyObject* object, Name& name) {
  return integer_from_python<T>(argument, get(object, name).ptr());
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_not_contiguous(const TensorView& view) {
  const py::handle array(view.owner);
  throw py::value_error(std::string(view.argument) + ": must be contiguous, has shape " +
                        std::string(py::str(array.attr("shape"))) + " and strides of " +
                        std::string(py::str(array.attr("strides"))) + " bytes");
}

}  // namespace

bool is_type(PyTypeObject* type) { return ndarray_class.is_base_of(type); }

bool reads(PyTypeObject* type) { return is_type(type) && _PyType_Lookup(type, contiguous.get()); }

void view(TensorView& view) {
  PyObject* array = view.owner;
  view.dtype = &numpy_array::dtype_of(view.argument, get(array, dtype).ptr());
  if (!PyObject_IsTrue(get(array, contiguous).ptr())) [[unlikely]]
    throw_not_contiguous(view);
  const auto elements = integer<std::size_t>(view.argument, array, size);
  const py::object memory = get(array, data);
  const auto address = integer<std::uintptr_t>(view.argument, memory.ptr(), ptr);
  view.data = reinterpret_cast<char*>(address);
  view.count = elements * view.dtype->width;
  view.device_type = kDLCUDA;
  // An empty array may have no memory.
  view.device_id = elements ? integer<int>(view.argument, memory.ptr(), device_id) : -1;
}

cudaStream_t current_stream(int device) {
  if (!get_current_stream)
    get_current_stream =
        py::object(py::module_::import("cupy.cuda").attr("get_current_stream")).release().ptr();
  const py::object stream = py::handle(get_current_stream)(device);
  return reinterpret_cast<cudaStream_t>(integer<std::uintptr_t>("stream", stream.ptr(), ptr));
}

}  // namespace pynccl::python::cupy_array
