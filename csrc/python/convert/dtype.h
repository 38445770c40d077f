// The element types: a table from the names of DLPack, the array interfaces and the frameworks to
// NCCL's data types.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "nccl/table.h"

namespace pynccl::python {

namespace py = pybind11;

struct DType {
  const char* name;     // NumPy's and torch's name
  ncclDataType_t nccl;  // the type that NCCL transfers
  std::uint8_t code;    // DLDataTypeCode
  std::uint8_t bits;    // of one element
  std::uint8_t width;   // elements of nccl in one element: 2 for complex numbers
  // The reduction operators that are defined on it: bit 1 << ncclRedOp_t; bit 1 << ncclNumOps
  // stands for the operators of ncclRedOpCreatePreMulSum.
  std::uint8_t reductions;
  int since;  // the first NCCL version that has it

  constexpr std::size_t size() const { return bits / 8u; }
  bool reduces(ncclRedOp_t op) const {
    return reductions >> (op < ncclNumOps ? op : ncclNumOps) & 1;
  }
};

// nullptr if NCCL has no such type.
const DType* find_dtype(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes);

// The type string of an array interface, such as "<f4".
struct TypeString {
  char kind;
  std::size_t size;  // bytes of one element
  bool swapped;      // in the byte order of other machines
};
// None if it is not of that form.
std::optional<TypeString> parse_type_string(const std::string& text);
const DType* find_dtype(const TypeString& type);
// From the type string and, for types that NumPy does not define (ml_dtypes), from the name of
// its dtype, which may be nullptr. Throws TypeError and ValueError.
const DType& dtype_of_numpy(const char* argument, const std::string& typestr, PyObject* dtype);
const DType& dtype_of_numpy(const char* argument, PyObject* dtype);
[[noreturn, gnu::cold]] void throw_unsupported_dtype(const char* argument,
                                                     const std::string& dtype);

// From a str, a NumPy or torch dtype, or a raw.ncclDataType_t. Throws TypeError and ValueError that
// name the argument.
const DType& dtype_from_python(const char* argument, PyObject* value);

// "int8, uint8, ...", for messages.
std::string dtype_names();

// The bits of a number as one element of this type, rounded to nearest even; in the first bytes of
// the result.
std::uint64_t encode_scalar(const char* argument, PyObject* value, const DType& dtype);

}  // namespace pynccl::python
