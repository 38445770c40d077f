// The element types: what DLPack, the array interfaces and users call them, and what they are to
// NCCL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "core/table.h"

namespace pynccl::python {

namespace py = pybind11;

struct DType {
  const char* name;     // NumPy's and torch's name
  ncclDataType_t nccl;  // what NCCL moves
  std::uint8_t code;    // DLDataTypeCode
  std::uint8_t bits;    // of one element
  std::uint8_t width;   // elements of nccl in one element: 2 for complex numbers
  std::uint8_t
      reductions;  // bits 1 << ncclRedOp_t that are right on it; kCustomOp for the user's own
  int since;       // the NCCL version that brought it

  constexpr std::size_t size() const { return bits / 8u; }
  bool reduces(ncclRedOp_t op) const {
    return reductions >> (op < ncclNumOps ? op : ncclNumOps) & 1;
  }
};

// nullptr where NCCL has no such type.
const DType* find_dtype(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes);
// From the typestr of an array interface: "<f4".
const DType* find_dtype(const std::string& typestr);
// From a str, a NumPy or torch dtype, a raw.ncclDataType_t. Throws TypeError and ValueError naming
// the argument.
const DType& dtype_from_python(const char* argument, PyObject* value);

// "int8, uint8, ...", for messages.
std::string dtype_names();

// The bytes of a number as one element of this type, rounded to nearest even; at most 8 of them.
std::uint64_t encode_scalar(const char* argument, PyObject* value, const DType& dtype);

}  // namespace pynccl::python
