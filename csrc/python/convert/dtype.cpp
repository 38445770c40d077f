#include "python/convert/dtype.h"

#include <dlpack/dlpack.h>

#include <array>
#include <cmath>
#include <cstring>

#include "python/call/errors.h"
#include "python/convert/integer.h"

namespace pynccl::python {
namespace {

constexpr std::uint8_t op_bit(ncclRedOp_t op) { return static_cast<std::uint8_t>(1u << op); }

constexpr std::uint8_t kAll = 0x3f;
// On booleans PROD is "and" and MAX is "or". A sum of booleans is not a boolean.
constexpr std::uint8_t kBoolean = op_bit(ncclProd) | op_bit(ncclMax) | op_bit(ncclMin);
// Complex numbers are transferred as pairs of reals, so only operators that act on the real and
// imaginary parts separately are allowed.
constexpr std::uint8_t kComplex = op_bit(ncclSum) | op_bit(ncclAvg) | op_bit(ncclNumOps);

constexpr DType kTypes[] = {
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

// The index in kTypes by type code and element size in bytes; -1 for types that NCCL lacks.
constexpr auto kRows = [] {
  std::array<std::array<signed char, 17>, 16> rows{};
  for (auto& row : rows) row.fill(-1);
  signed char number = 0;
  for (const DType& type : kTypes) rows[type.code][type.size()] = number++;
  return rows;
}();

// A floating-point format of 8 or 16 bits.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  // The code of the largest magnitude that rounding can produce: infinity or, like CUDA's
  // saturating conversions to 8 bits, the largest finite number.
  unsigned largest;
  unsigned nan;
};

unsigned encode(double value, const Format& format) {
  const unsigned sign =
      std::signbit(value) ? 1u << (format.exponent_bits + format.mantissa_bits) : 0;
  if (std::isnan(value)) return sign | format.nan;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return sign | format.largest;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  if (exponent > bias + 1) return sign | format.largest;
  // The mantissa includes its leading one, so the addition carries an overflow into the exponent.
  const double mantissa = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const unsigned code = (static_cast<unsigned>(exponent + bias - 1) << format.mantissa_bits) +
                        static_cast<unsigned>(mantissa);
  return sign | std::min(code, format.largest);
}

template <class T>
std::uint64_t bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

}  // namespace

const DType* find_dtype(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes) {
  if (lanes != 1 || code >= kRows.size() || bits % 8 || bits > 128) [[unlikely]]
    return nullptr;
  const int row = kRows[code][bits / 8];
  return row < 0 ? nullptr : &kTypes[row];
}

std::optional<TypeString> parse_type_string(const std::string& text) {
  constexpr std::size_t kDigits = 9;  // the most digits of an element size
  if (text.size() < 3 || text.size() > 2 + kDigits) return std::nullopt;
  if (text[0] != '<' && text[0] != '>' && text[0] != '|') return std::nullopt;
  TypeString type{text[1], 0, false};
  for (const char digit : text.substr(2)) {
    if (digit < '0' || digit > '9') return std::nullopt;
    type.size = 10 * type.size + static_cast<std::size_t>(digit - '0');
  }
  type.swapped = text[0] == '>' && type.size > 1;
  return type;
}

const DType* find_dtype(const TypeString& type) {
  if (type.swapped || type.size > 16) return nullptr;
  constexpr struct {
    char kind;
    std::uint8_t code;
  } kKinds[] = {{'i', kDLInt}, {'u', kDLUInt}, {'f', kDLFloat}, {'c', kDLComplex}, {'b', kDLBool}};
  for (const auto& kind : kKinds)
    if (kind.kind == type.kind)
      return find_dtype(kind.code, static_cast<std::uint8_t>(8 * type.size), 1);
  return nullptr;
}

const DType& dtype_of_numpy(const char* argument, const std::string& typestr, PyObject* dtype) {
  const std::optional<TypeString> type = parse_type_string(typestr);
  if (type) {
    if (const DType* found = find_dtype(*type)) return *found;
    if (dtype && !type->swapped) {
      const DType& named = dtype_from_python(argument, dtype);
      if (named.size() == type->size) return named;
    }
  }
  throw_unsupported_dtype(argument, typestr);
}

const DType& dtype_of_numpy(const char* argument, PyObject* dtype) {
  return dtype_of_numpy(argument, std::string(py::str(py::handle(dtype).attr("str"))), dtype);
}

void throw_unsupported_dtype(const char* argument, const std::string& dtype) {
  throw_value_error(argument, "dtype ", dtype, " is not a dtype of NCCL: expected one of ",
                    dtype_names());
}

const DType& dtype_from_python(const char* argument, PyObject* value) {
  static PyObject* enum_type = nullptr;  // set under the GIL
  if (!enum_type) enum_type = py::type::of(py::cast(ncclFloat32)).release().ptr();
  if (py::isinstance(value, enum_type)) {
    const long code = PyLong_AsLong(value);
    for (const DType& type : kTypes)
      if (static_cast<long>(type.nccl) == code) return type;
  }
  // "torch.float32", "float32", dtype('float32') and <class 'numpy.float32'> all end in "float32".
  std::string name;
  if (PyType_Check(value))
    name = std::string(py::str(py::handle(value).attr("__name__")));
  else if (py::hasattr(value, "name") && !PyUnicode_Check(value))
    name = std::string(py::str(py::handle(value).attr("name")));
  else
    name = std::string(py::str(py::handle(value)));
  const std::string last = name.substr(name.rfind('.') + 1);
  for (const DType& type : kTypes)
    if (last == type.name) return type;
  throw_value_error(argument, std::string(py::repr(value)),
                    " is not a dtype of NCCL: expected one of ", dtype_names());
}

std::string dtype_names() {
  std::string names;
  for (const DType& type : kTypes) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

std::uint64_t encode_scalar(const char* argument, PyObject* value, const DType& dtype) {
  switch (dtype.nccl) {
    case ncclInt8:
      return bits_of(integer_from_python<std::int8_t>(argument, value));
    case ncclUint8:
      return bits_of(integer_from_python<std::uint8_t>(argument, value));
    case ncclInt32:
      return bits_of(integer_from_python<std::int32_t>(argument, value));
    case ncclUint32:
      return bits_of(integer_from_python<std::uint32_t>(argument, value));
    case ncclInt64:
      return bits_of(integer_from_python<std::int64_t>(argument, value));
    case ncclUint64:
      return bits_of(integer_from_python<std::uint64_t>(argument, value));
    default:
      break;
  }
  const double number = PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred()) throw_conversion_error(argument, "a real number", value);
  switch (dtype.nccl) {
    case ncclFloat16:
      return encode(number, {5, 10, 0x7c00, 0x7e00});
    case ncclBfloat16:
      return encode(number, {8, 7, 0x7f80, 0x7fc0});
    case ncclFloat8e4m3:
      return encode(number, {4, 3, 0x7e, 0x7f});
    case ncclFloat8e5m2:
      return encode(number, {5, 2, 0x7b, 0x7e});
    case ncclFloat32:
      return bits_of(static_cast<float>(number));
    default:
      return bits_of(number);
  }
}

}  // namespace pynccl::python
