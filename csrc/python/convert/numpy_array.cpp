#include "python/convert/numpy_array.h"

#include <dlpack/dlpack.h>

#include <array>
#include <utility>
#include <vector>

#include "python/call/errors.h"
#include "python/call/modules.h"

namespace pynccl::python::numpy_array {
namespace {

ModuleClass ndarray_class{"numpy", "ndarray"};
ModuleClass scalar_class{"numpy", "generic"};
ModuleClass masked_class{"numpy.ma", "MaskedArray"};

// The beginning of NumPy's PyArrayObject.
struct Array {
  PyObject_HEAD char* data;
  int nd;
  Py_ssize_t* dimensions;
  Py_ssize_t* strides;  // in bytes
  PyObject* base;
  PyObject* descr;
  int flags;
};
constexpr int kContiguous = 0x1;
constexpr int kWriteable = 0x400;

const Array& array_of(PyObject* object) { return *reinterpret_cast<const Array*>(object); }

// Whether the fields of an array agree with its Python attributes.
bool fields_agree(const py::object& array) {
  const Array& fields = array_of(array.ptr());
  const auto shape = py::cast<py::tuple>(array.attr("shape"));
  const auto strides = py::cast<py::tuple>(array.attr("strides"));
  const auto interface = py::cast<py::dict>(array.attr("__array_interface__"));
  const auto data = py::cast<py::tuple>(interface["data"]);
  if (fields.nd != static_cast<int>(shape.size()) ||
      fields.descr != py::object(array.attr("dtype")).ptr() ||
      fields.flags != py::cast<int>(array.attr("flags").attr("num")) ||
      reinterpret_cast<std::uintptr_t>(fields.data) != py::cast<std::uintptr_t>(data[0]))
    return false;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (fields.dimensions[i] != py::cast<Py_ssize_t>(shape[i]) ||
        fields.strides[i] != py::cast<Py_ssize_t>(strides[i]))
      return false;
  return true;
}

bool has_this_layout(PyTypeObject* ndarray) {
  if (ndarray->tp_basicsize < static_cast<Py_ssize_t>(sizeof(Array))) return false;
  try {
    const py::object array =
        py::handle(ndarray_class.module()).attr("zeros")(py::make_tuple(2, 3, 5), "int16");
    const py::object transposed = array.attr("T");
    const py::object readonly = array.attr("copy")();
    readonly.attr("setflags")(py::arg("write") = false);
    return fields_agree(array) && fields_agree(transposed) && fields_agree(readonly) &&
           array_of(array.ptr()).flags & kContiguous && array_of(array.ptr()).flags & kWriteable &&
           !(array_of(transposed.ptr()).flags & kContiguous) &&
           !(array_of(readonly.ptr()).flags & kWriteable);
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return false;
  } catch (const py::cast_error&) {
    return false;
  }
}

// numpy.ndarray. Set once under the GIL, never released.
PyTypeObject* known = nullptr;
bool layout_is_right = false;

// A cache of dtypes by the address of NumPy's dtype object. Each row owns a reference to it.
struct Row {
  PyObject* descr = nullptr;
  const DType* dtype = nullptr;
};
std::array<Row, 16> rows;

Row& row_of(PyObject* descr) {
  return rows[reinterpret_cast<std::uintptr_t>(descr) / 32 % rows.size()];
}

[[gnu::noinline]] const DType& look_up(const char* argument, PyObject* descr) {
  const DType* dtype = &dtype_of_numpy(argument, descr);
  Py_INCREF(descr);
  const Row before = std::exchange(row_of(descr), {descr, dtype});
  Py_XDECREF(before.descr);  // may run Python code
  return *dtype;
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_not_contiguous(const TensorView& view) {
  const Array& array = array_of(view.owner);
  std::vector<std::int64_t> shape(array.dimensions, array.dimensions + array.nd);
  std::vector<std::int64_t> strides(array.strides, array.strides + array.nd);
  for (std::int64_t& stride : strides) stride /= static_cast<std::int64_t>(view.dtype->size());
  DLTensor tensor{};
  tensor.ndim = array.nd;
  tensor.shape = shape.data();
  tensor.strides = strides.data();
  tensor_mistakes::throw_strided(view, tensor);
}

}  // namespace

bool reads(PyTypeObject* type) {
  if (!known) {
    PyTypeObject* ndarray = ndarray_class.get();
    if (!ndarray) return false;
    const bool right = has_this_layout(ndarray);
    if (known) return reads(type);  // another thread has set it meanwhile
    Py_INCREF(ndarray);
    known = ndarray;
    layout_is_right = right;
  }
  return layout_is_right && PyType_IsSubtype(type, known) && !masked_class.is_base_of(type);
}

void refuse(const char* argument, PyObject* object) {
  if (scalar_class.is_base_of(Py_TYPE(object)))
    throw_type_error(argument, "an array; a NumPy scalar is a copy", object);
  if (masked_class.is_base_of(Py_TYPE(object)))
    throw_type_error(argument, "an array without a mask; pass its .data", object);
}

const DType& dtype_of(const char* argument, PyObject* descr) {
  const Row& row = row_of(descr);
  return row.descr == descr ? *row.dtype : look_up(argument, descr);
}

void view(TensorView& view) {
  const Array& array = array_of(view.owner);
  view.dtype = &dtype_of(view.argument, array.descr);
  if (!(array.flags & kContiguous)) [[unlikely]]
    throw_not_contiguous(view);
  std::size_t elements = 1;
  for (int i = 0; i < array.nd; ++i) elements *= static_cast<std::size_t>(array.dimensions[i]);
  view.data = array.data;
  view.count = elements * view.dtype->width;
  view.device_type = kDLCPU;
  view.readonly = !(array.flags & kWriteable);
}

}  // namespace pynccl::python::numpy_array
