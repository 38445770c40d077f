// The element types: maps those of DLPack, the array interfaces and the frameworks to NCCL's.
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
  // The reduction operators defined on the type: bit 1 << ncclRedOp_t, and bit 1 << ncclNumOps for
  // operators from ncclRedOpCreatePreMulSum.
  std::uint8_t reductions;
  int since;  // the first NCCL version that supports it

  constexpr std::size_t size() const { return bits / 8u; }
  bool reduces(ncclRedOp_t op) const {
    return reductions >> (op < ncclNumOps ? op : ncclNumOps) & 1;
  }
};

// Returns nullptr if NCCL does not support the type.
const DType* find_dtype(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes);

// The type string of an array interface, such as "<f4".
struct TypeString {
  char kind;
  std::size_t size;  // bytes of one element
  bool swapped;      // not in this machine's byte order
};
// Returns nullopt if the text is not a type string.
std::optional<TypeString> parse_type_string(const std::string& text);
const DType* find_dtype(const TypeString& type);
// The type of a type string. For types that NumPy does not define (ml_dtypes), the name of the
// dtype object decides, which may be nullptr. Throws TypeError and ValueError.
const DType& dtype_of_numpy(const char* argument, const std::string& typestr, PyObject* dtype);
const DType& dtype_of_numpy(const char* argument, PyObject* dtype);
[[noreturn, gnu::cold]] void throw_unsupported_dtype(const char* argument,
                                                     const std::string& dtype);

// The type of a dtype argument: a str, a NumPy or torch dtype, or a raw.ncclDataType_t. Throws
// TypeError and ValueError that name the argument.
const DType& dtype_from_python(const char* argument, PyObject* value);

// The list of supported types for error messages: "int8, uint8, ...".
std::string dtype_names();

// Encodes a number as one element of this type, rounded to nearest even, in the first bytes of the
// result.
std::uint64_t encode_scalar(const char* argument, PyObject* value, const DType& dtype);

}  // namespace pynccl::python
