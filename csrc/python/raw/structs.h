// The structs of nccl.h as Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include <cstring>
#include <map>
#include <string>
#include <type_traits>

#include "nccl/table.h"
#include "python/call/errors.h"
#include "python/convert/integer.h"

namespace pynccl::python {

// A struct together with the strings that it points to.
template <class T>
struct Owned {
  T value{};
  std::map<const char* T::*, std::string, bool (*)(const char* T::*, const char* T::*)> strings{
      [](const char* T::* a, const char* T::* b) { return std::memcmp(&a, &b, sizeof a) < 0; }};

  Owned() = default;
  Owned(const Owned& other) : value(other.value), strings(other.strings) {
    for (auto& [member, text] : strings) value.*member = text.c_str();
  }
  Owned& operator=(const Owned&) = delete;

  void set(const char* T::* member, const py::object& text) {
    if (text.is_none()) {
      value.*member = nullptr;
      strings.erase(member);
    } else {
      const bool is_bytes = PyBytes_Check(text.ptr());
      if (!is_bytes && !PyUnicode_Check(text.ptr()))
        throw_type_error("value", "a str, bytes or None", text.ptr());
      value.*member =
          (strings[member] = is_bytes ? std::string(py::bytes(text)) : std::string(py::str(text)))
              .c_str();
    }
  }
};

template <class T>
inline constexpr bool has_strings = false;
template <>
inline constexpr bool has_strings<ncclConfig_t> = true;
template <>
inline constexpr bool has_strings<ncclCollConfig_t> = true;
template <>
inline constexpr bool has_strings<ncclEncryptionConfig_t> = true;

template <class T>
using Bound = std::conditional_t<has_strings<T>, Owned<T>, T>;  // the C++ type of the Python class

// Converts a UniqueId or an object with the buffer protocol.
ncclUniqueId unique_id_from_python(const char* name, PyObject* value);

// The name of a struct's Python class.
template <class T>
std::string type_name() {
  return py::cast<std::string>(py::type::of<T>().attr("__name__"));
}

// Returns a copy of the struct. The Python object still owns its strings.
template <class T>
T struct_from_python(const char* name, PyObject* value) {
  if constexpr (std::is_same_v<T, ncclUniqueId>) {
    return unique_id_from_python(name, value);
  } else {
    py::detail::make_caster<Bound<T>> caster;
    if (value == Py_None || !caster.load(value, false))
      throw_type_error(name, type_name<Bound<T>>().c_str(), value);
    auto& bound = py::detail::cast_op<Bound<T>&>(caster);
    if constexpr (has_strings<T>)
      return bound.value;
    else
      return bound;
  }
}

}  // namespace pynccl::python
