#include "python/convert/cupy_array.h"

#include <dlpack/dlpack.h>

#include "python/convert/integer.h"
#include "python/convert/modules.h"

namespace pynccl::python::cupy_array {
namespace {

// The names of attributes, and CuPy's function: made at the first array, under the GIL, and kept.
struct Names {
  PyObject* contiguous;
  PyObject* data;
  PyObject* device_id;
  PyObject* dtype;
  PyObject* ptr;
  PyObject* size;
};
Names names;
bool named = false;
PyObject* get_current_stream = nullptr;

void make_names() {
  const auto intern = [](const char* name) {
    PyObject* made = PyUnicode_InternFromString(name);
    if (!made) throw py::error_already_set();
    return made;
  };
  names = {intern("_c_contiguous"), intern("data"), intern("device_id"),
           intern("dtype"),         intern("ptr"),  intern("size")};
  named = true;
}

py::object get(const py::object& object, PyObject* name) {
  auto value = py::reinterpret_steal<py::object>(PyObject_GetAttr(object.ptr(), name));
  if (!value) throw py::error_already_set();
  return value;
}

template <class T>
T integer(const py::object& object, PyObject* name) {
  return integer_from_python<T>("data", get(object, name).ptr());
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_not_contiguous(const TensorView& view) {
  const py::handle array(view.owner);
  throw py::value_error(std::string(view.argument) + ": must be contiguous, has shape " +
                        std::string(py::str(array.attr("shape"))) + " and strides of " +
                        std::string(py::str(array.attr("strides"))) + " bytes");
}

}  // namespace

bool is_type(PyTypeObject* type) {
  PyTypeObject* ndarray = class_of_module("cupy", "ndarray");
  return ndarray && PyType_IsSubtype(type, ndarray);
}

bool reads(PyTypeObject* type) {
  if (!is_type(type)) return false;
  if (!named) make_names();
  return _PyType_Lookup(type, names.contiguous);
}

void view(TensorView& view) {
  const auto array = py::reinterpret_borrow<py::object>(view.owner);
  view.dtype = &dtype_of_numpy(view.argument, get(array, names.dtype).ptr());
  if (!PyObject_IsTrue(get(array, names.contiguous).ptr())) [[unlikely]]
    throw_not_contiguous(view);
  const auto elements = integer<std::size_t>(array, names.size);
  const py::object memory = get(array, names.data);
  view.data = reinterpret_cast<char*>(integer<std::uintptr_t>(memory, names.ptr));
  view.count = elements * view.dtype->width;
  view.device_type = kDLCUDA;
  // An array of no elements may have no memory.
  view.device_id = elements ? integer<int>(memory, names.device_id) : -1;
}

cudaStream_t current_stream(int device) {
  if (!get_current_stream)
    get_current_stream =
        py::object(py::module_::import("cupy.cuda").attr("get_current_stream")).release().ptr();
  const py::object stream = py::handle(get_current_stream)(device);
  if (!named) make_names();
  return reinterpret_cast<cudaStream_t>(integer<std::uintptr_t>(stream, names.ptr));
}

}  // namespace pynccl::python::cupy_array
