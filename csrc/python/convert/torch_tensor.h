// Checks that the values of a torch tensor are those in its memory, which DLPack does not report. A
// tensor may be lazily conjugated or negated, or its values may be defined by Python or by a
// transformation. torch records this in the tensor's dispatch keys, which are read here without a
// call.
#pragma once

#include <dlpack/dlpack.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

namespace pynccl::python::torch_tensor {

// The location of the dispatch keys in objects of a type, and the keys to refuse. By default it
// reads the object's type pointer and refuses nothing.
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

// Whether the type is torch.Tensor or a subclass.
bool is_type(PyTypeObject* type);

// Finds the keys of a type with this exchange API. Returns false if the layout of this torch is
// unknown, or cannot be determined now. Then check_slowly() must check each tensor.
bool find_keys(PyTypeObject* type, const DLPackExchangeAPI* api, Keys& keys);

// Throws ValueError if the values of a tensor are not those in memory, according to torch's
// methods.
void check_slowly(const char* argument, PyObject* tensor);

// Throws the ValueError for a tensor refused by Keys::refuse().
[[noreturn, gnu::cold]] void throw_refused(const char* argument, PyObject* tensor);

}  // namespace pynccl::python::torch_tensor
