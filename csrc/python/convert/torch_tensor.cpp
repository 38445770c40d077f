#include "python/convert/torch_tensor.h"

#include <bit>
#include <string>

#include "python/call/modules.h"

namespace pynccl::python::torch_tensor {
namespace {

namespace py = pybind11;

ModuleClass tensor_class{"torch", "Tensor"};

// Set once under the GIL, never released.
struct Layout {
  Keys keys;                               // without refused keys
  std::uint64_t lazy = 0;                  // conjugated, negated, zeros without memory
  std::uint64_t elsewhere = 0;             // defined by Python, or by a transformation
  const DLPackExchangeAPI* api = nullptr;  // of torch.Tensor itself
};
Layout layout;
bool layout_is_known = false;
bool layout_is_other = false;  // not recognized: tensors are checked by methods of torch

std::uint64_t keys_of(const py::object& c, const py::object& tensor) {
  return py::cast<std::uint64_t>(c.attr("_dispatch_keys")(tensor).attr("raw_repr")());
}

// The mask of the keys with these names. Keys that this torch does not define are skipped.
std::uint64_t mask_of(const py::object& c, std::initializer_list<const char*> names) {
  std::uint64_t mask = 0;
  for (const char* name : names)
    if (const py::object key = py::getattr(c.attr("DispatchKey"), name, py::none()); !key.is_none())
      mask |= py::cast<std::uint64_t>(c.attr("DispatchKeySet")(key).attr("raw_repr")());
  return mask;
}

template <class T>
T load(const void* address, std::ptrdiff_t offset) {
  return *reinterpret_cast<const T*>(static_cast<const char*>(address) + offset);
}

// Searches for the word offset at which each base contains its value; -1 if there is none.
template <class Base, class Value>
std::ptrdiff_t find_offset(std::ptrdiff_t end, const Base (&bases)[3], const Value (&values)[3]) {
  for (std::ptrdiff_t offset = 0; offset < end; offset += sizeof(void*)) {
    bool same = true;
    for (int i = 0; i < 3 && same; ++i) same = load<Value>(bases[i], offset) == values[i];
    if (same) return offset;
  }
  return -1;
}

// Derives the layout from three tensors whose keys torch reports.
bool find_layout(const py::object& torch, PyTypeObject* tensor_type) {
  const py::object c = torch.attr("_C");
  const py::object plain = torch.attr("zeros")(1, py::arg("device") = "cpu");
  const py::object complex =
      torch.attr("zeros")(1, py::arg("device") = "cpu", py::arg("dtype") = torch.attr("complex64"));
  const py::object specimens[3] = {plain, complex.attr("conj")(), plain.attr("_neg_view")()};
  const PyObject* objects[3];
  std::uintptr_t implementations[3];
  const void* addresses[3];
  std::uint64_t keys[3];
  for (int i = 0; i < 3; ++i) {
    if (Py_TYPE(specimens[i].ptr()) != tensor_type) return false;  // a mode is active
    objects[i] = specimens[i].ptr();
    implementations[i] = py::cast<std::uintptr_t>(specimens[i].attr("_cdata"));
    addresses[i] = reinterpret_cast<const void*>(implementations[i]);
    keys[i] = keys_of(c, specimens[i]);
  }
  Layout found;
  constexpr std::ptrdiff_t kEnd = 192;  // a lower bound of sizeof(TensorImpl)
  found.keys.pointer = find_offset(tensor_type->tp_basicsize, objects, implementations);
  found.keys.keys = find_offset(kEnd, addresses, keys);
  const std::uint64_t conjugate = mask_of(c, {"Conjugate"}), negative = mask_of(c, {"Negative"});
  if (found.keys.pointer < 0 || found.keys.keys < 0 || (keys[0] ^ keys[1]) != conjugate ||
      (keys[0] ^ keys[2]) != negative || !std::has_single_bit(conjugate) ||
      !std::has_single_bit(negative)) {
    layout_is_other = true;
    return false;
  }
  found.lazy = conjugate | negative | mask_of(c, {"ZeroTensor"});
  found.elsewhere = mask_of(c, {"Python", "Functionalize", "FuncTorchBatched",
                                "FuncTorchGradWrapper", "FuncTorchDynamicLayerFrontMode"});
  if ((found.lazy | found.elsewhere) & keys[0]) return false;
  const py::object capsule =
      py::getattr(torch.attr("Tensor"), "__dlpack_c_exchange_api__", py::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api"))
    found.api = static_cast<const DLPackExchangeAPI*>(
        PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  layout = found;
  return true;
}

bool answers_yes(PyObject* tensor, const char* method) {
  return py::cast<bool>(py::handle(tensor).attr(method)());
}

}  // namespace

bool is_type(PyTypeObject* type) { return tensor_class.is_base_of(type); }

bool find_keys(PyTypeObject* type, const DLPackExchangeAPI* api, Keys& keys) {
  if (!is_type(type)) return true;
  if (!layout_is_known && !layout_is_other) {
    try {
      layout_is_known = find_layout(py::reinterpret_borrow<py::object>(tensor_class.module()),
                                    tensor_class.get());
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;
    }
  }
  if (!layout_is_known) return false;
  keys = layout.keys;
  // A subclass with its own exchange API reports itself where its values are.
  keys.refused = layout.lazy | (api == layout.api ? layout.elsewhere : 0);
  return true;
}

void check_slowly(const char* argument, PyObject* tensor) {
  if (answers_yes(tensor, "is_conj") || answers_yes(tensor, "is_neg"))
    throw_refused(argument, tensor);
}

void throw_refused(const char* argument, PyObject* tensor) {
  const std::string name(argument);
  constexpr struct {
    const char* test;
    const char* state;
    const char* remedy;
  } kLazy[] = {{"is_conj", "conjugated", "resolve_conj"}, {"is_neg", "negated", "resolve_neg"}};
  for (const auto& lazy : kLazy)
    if (answers_yes(tensor, lazy.test))
      throw py::value_error(name + ": is lazily " + lazy.state +
                            ", its memory does not contain its values; pass the result of ." +
                            lazy.remedy + "()");
  throw py::value_error(name + ": the values of this tensor (" + Py_TYPE(tensor)->tp_name +
                        ") are not in memory of its own; pass a plain tensor");
}

}  // namespace pynccl::python::torch_tensor
