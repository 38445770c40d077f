// What DLPack does not say about torch's tensors: whether the values are those in memory. A tensor
// may be conjugated or negated lazily, or its values may be defined by Python or by a
// transformation. torch notes that in the dispatch keys of the tensor, which are read here without
// a call.
#pragma once

#include <dlpack/dlpack.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

namespace pynccl::python::torch_tensor {

// Where an object of a type has its dispatch keys, and which of them are refused. As it is made, it
// reads the type of the object, and refuses nothing.
struct Keys {
  std::ptrdiff_t pointer = offsetof(PyObject, ob_type);  // to the TensorImpl, in the object
  std::ptrdiff_t keys = 0;                               // in the TensorImpl
  std::uint64_t refused = 0;

  [[gnu::always_inline]] bool refuse(PyObject* object) const {
    const char* implementation =
        *reinterpret_cast<const char* const*>(reinterpret_cast<const char*>(object) + pointer);
    return *reinterpret_cast<const std::uint64_t*>(implementation + keys) & refused;
  }
};

// Whether the type is torch.Tensor or inherits it.
bool is_type(PyTypeObject* type);

// The keys of a type of tensors with this exchange API. False if the layout of this torch is not
// known, or cannot be found out now: then each tensor is to be checked by check_slowly().
bool find_keys(PyTypeObject* type, const DLPackExchangeAPI* api, Keys& keys);

// Throws ValueError if the values of a tensor are not those in memory, as Python tells.
void check_slowly(const char* argument, PyObject* tensor);

// Throws the ValueError of a tensor that keys refuse.
[[noreturn, gnu::cold]] void throw_refused(const char* argument, PyObject* tensor);

}  // namespace pynccl::python::torch_tensor
