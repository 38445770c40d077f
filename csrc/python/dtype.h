// The element types: what DLPack, the array interfaces and users call them, and what they are to
// NCCL.
#pragma once

#include <dlpack/dlpack.h>
#include <pybind11/pybind11.h>

#include <array>
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

namespace dtype_table {

inline constexpr std::uint8_t op_bit(ncclRedOp_t op) { return static_cast<std::uint8_t>(1u << op); }

inline constexpr std::uint8_t kAll = 0x3f;
// Of two booleans PROD is "and", MAX is "or"; their sum would be no boolean.
inline constexpr std::uint8_t kBoolean = op_bit(ncclProd) | op_bit(ncclMax) | op_bit(ncclMin);
// Complex numbers travel as pairs of reals: only what works on the parts is right.
inline constexpr std::uint8_t kComplex = op_bit(ncclSum) | op_bit(ncclAvg) | op_bit(ncclNumOps);

inline constexpr DType kTypes[] = {
    {"int8", ncclInt8, kDLInt, 8, 1, kAll, 20000},
    {"uint8", ncclUint8, kDLUInt, 8, 1, kAll, 20000},
    {"int32", ncclInt32, kDLInt, 32, 1, kAll, 20000},
    {"uint32", ncclUint32, kDLUInt, 32, 1, kAll, 20000},
    {"int64", ncclInt64, kDLInt, 64, 1, kAll, 20000},
    {"uint64", ncclUint64, kDLUInt, 64, 1, kAll, 20000},
    {"float16", ncclFloat16, kDLFloat, 16, 1, kAll, 20000},
    {"float32", ncclFloat32, kDLFloat, 32, 1, kAll, 20000},
    {"float64", ncclFloat64, kDLFloat, 64, 1, kAll, 20000},
    {"bfloat16", ncclBfloat16, kDLBfloat, 16, 1, kAll, 21000},
    {"float8_e4m3fn", ncclFloat8e4m3, kDLFloat8_e4m3fn, 8, 1, kAll, 22400},
    {"float8_e5m2", ncclFloat8e5m2, kDLFloat8_e5m2, 8, 1, kAll, 22400},
    {"bool", ncclUint8, kDLBool, 8, 1, kBoolean, 20000},
    {"complex64", ncclFloat32, kDLComplex, 64, 2, kComplex, 20000},
    {"complex128", ncclFloat64, kDLComplex, 128, 2, kComplex, 20000},
};

// The number of the row for each type code and size of an element in bytes; -1 where NCCL has no
// such type.
inline constexpr auto kRows = [] {
  std::array<std::array<signed char, 17>, 16> rows{};
  for (auto& row : rows) row.fill(-1);
  signed char number = 0;
  for (const DType& type : kTypes) rows[type.code][type.size()] = number++;
  return rows;
}();

}  // namespace dtype_table

// nullptr where NCCL has no such type.
inline const DType* find_dtype(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes) {
  using dtype_table::kRows;
  if (lanes != 1 || code >= kRows.size() || bits % 8 || bits > 128) [[unlikely]]
    return nullptr;
  const int row = kRows[code][bits / 8];
  return row < 0 ? nullptr : &dtype_table::kTypes[row];
}
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
