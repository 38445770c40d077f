// Converts integer arguments: integers in the range of a C++ type, ranks, and shapes.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "python/call/errors.h"

namespace pynccl::python {

// long rather than long long: Python converts a long digit by digit, but a long long byte by byte
// through memory. For an address that takes as long as the rest of a call.
template <class T>
using Wide = std::conditional_t<std::is_unsigned_v<T>, unsigned long, long>;
static_assert(sizeof(long) == sizeof(void*) && sizeof(long) == sizeof(std::int64_t));

// The value of a nonnegative int of one digit, read in place; -1 for other ints. In practice, all
// arguments except addresses have one digit.
inline long one_digit(PyObject* value) {
  auto* integer = reinterpret_cast<PyLongObject*>(value);
#if PY_VERSION_HEX >= 0x030c0000
  return PyUnstable_Long_IsCompact(integer) ? PyUnstable_Long_CompactValue(integer) : -1;
#elif PY_VERSION_HEX >= 0x030b0000
  const Py_ssize_t digits = Py_SIZE(integer);
  return digits == 1 ? static_cast<long>(integer->ob_digit[0]) : digits == 0 ? 0 : -1;
#else
  static_cast<void>(integer);
  return -1;
#endif
}

template <class T>
Wide<T> wide_from_python(PyObject* value) {
  if constexpr (std::is_unsigned_v<T>)
    return PyLong_AsUnsignedLong(value);
  else
    return PyLong_AsLong(value);
}

template <class T>
bool fits(Wide<T> wide) {
  return wide >= std::numeric_limits<T>::min() && wide <= std::numeric_limits<T>::max();
}

// The slow path of integer_from_python(): objects with __index__, -1, and errors.
template <class T>
[[gnu::noinline]] T other_integer_from_python(const char* name, PyObject* value) {
  if (!PyIndex_Check(value)) throw_type_error(name, "an integer", value);
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value));
  if (!index) throw py::error_already_set();
  const Wide<T> wide = wide_from_python<T>(index.ptr());
  const bool overflow = wide == static_cast<Wide<T>>(-1) && PyErr_Occurred();
  if (overflow || !fits<T>(wide)) {
    PyErr_Clear();
    throw_value_error(name, std::string(py::repr(index)), " does not fit between ",
                      std::numeric_limits<T>::min(), " and ", std::numeric_limits<T>::max());
  }
  return static_cast<T>(wide);
}

// Converts a Python integer or an object with __index__ to T. Throws TypeError and ValueError that
// name the argument.
template <class T>
T integer_from_python(const char* name, PyObject* value) {
  if (PyLong_Check(value)) [[likely]] {
    const long small = one_digit(value);
    if (small >= 0 && (sizeof(T) >= sizeof(int) || fits<T>(static_cast<Wide<T>>(small))))
      return static_cast<T>(small);
    const Wide<T> wide = wide_from_python<T>(value);
    if (wide != static_cast<Wide<T>>(-1) && fits<T>(wide)) [[likely]]
      return static_cast<T>(wide);
    PyErr_Clear();
  }
  return other_integer_from_python<T>(name, value);
}

// A root or a peer.
[[noreturn, gnu::cold, gnu::noinline]] inline void throw_rank(const char* name, int rank,
                                                              int nranks) {
  throw_value_error(name, "rank ", rank, " is out of range for a communicator of size ", nranks);
}

inline int rank_from_python(const char* name, PyObject* value, int nranks) {
  const int rank = integer_from_python<int>(name, value);
  if (rank < 0 || rank >= nranks) [[unlikely]]
    throw_rank(name, rank, nranks);
  return rank;
}

// A shape: an integer or a sequence of integers.
inline std::vector<std::int64_t> extents_from_python(const py::object& shape) {
  if (PyIndex_Check(shape.ptr())) return {integer_from_python<std::int64_t>("shape", shape.ptr())};
  if (!py::isinstance<py::sequence>(shape) || py::isinstance<py::str>(shape))
    throw_type_error("shape", "an integer or a sequence of integers", shape.ptr());
  std::vector<std::int64_t> extents;
  for (const py::handle extent : shape)
    extents.push_back(integer_from_python<std::int64_t>("shape", extent.ptr()));
  return extents;
}

}  // namespace pynccl::python
