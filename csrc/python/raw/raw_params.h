// Converts the parameters of abi/nccl_functions.inc between Python and C, one class per kind.
// Visible parameters are passed by the caller; the others are created here and returned. raw_call.h
// calls the functions.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "nccl/library.h"
#include "python/call/errors.h"
#include "python/raw/structs.h"

namespace pynccl::python {

// The arguments of a call by name, for parameters that refer to other parameters.
struct CallArguments {
  const Library& library;
  std::span<const char* const> names;  // of the visible parameters
  PyObject* const* values;             // of these parameters

  // The length in the parameter of this name. Throws ValueError if it is negative.
  std::size_t count(std::string_view name) const;
};

// A part of a name such as "commIds:nId", whose parameter refers to others. Part 0 is the
// parameter's own name, part -1 the last part.
std::string_view reference(std::string_view name, int part);

// Converts a Python integer to an integer, enum, handle or address, and None to NULL.
template <class T>
T from_python(const char* name, PyObject* value) {
  if constexpr (std::is_same_v<T, const char*>) {
    if (!PyUnicode_Check(value)) throw_type_error(name, "a str", value);
    const char* text = PyUnicode_AsUTF8(value);
    if (!text) throw py::error_already_set();
    return text;
  } else if constexpr (std::is_class_v<T>) {
    return struct_from_python<T>(name, value);
  } else if constexpr (std::is_pointer_v<T>) {
    if (value == Py_None) return nullptr;
    return reinterpret_cast<T>(integer_from_python<std::uintptr_t>(name, value));
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(integer_from_python<std::underlying_type_t<T>>(name, value));
  } else {
    return integer_from_python<T>(name, value);
  }
}

template <class T>
py::object to_python(const T& value) {
  if constexpr (std::is_same_v<T, const char*>) {
    return value ? py::object(py::str(value)) : py::object(py::none());
  } else if constexpr (std::is_class_v<T>) {
    return py::cast(value);
  } else if constexpr (std::is_pointer_v<T>) {
    return py::int_(reinterpret_cast<std::uintptr_t>(value));
  } else if constexpr (std::is_enum_v<T>) {
    return py::int_(static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return py::float_(value);
  } else {
    return py::int_(value);
  }
}

template <class T>
struct In {
  static constexpr bool visible = true;
  static constexpr bool returned = false;
  T value{};
  void load(const char* name, PyObject* object, const CallArguments&) {
    value = from_python<T>(name, object);
  }
  T argument() { return value; }
};

template <class T>
struct Out {
  static constexpr bool visible = false;
  static constexpr bool returned = true;
  T value{};
  void load(const char*, PyObject*, const CallArguments&) {}
  T* argument() { return &value; }
  py::object result() { return to_python(value); }
};

// Handles that NCCL may write after the call: at the end of the group, or in the background for a
// non-blocking communicator. Their memory is never freed.
template <class T>
  requires std::is_same_v<T, ncclComm_t> || std::is_same_v<T, ncclWindow_t>
struct Out<T> {
  static constexpr bool visible = false;
  static constexpr bool returned = true;
  T* value = nullptr;
  void load(const char*, PyObject*, const CallArguments&) {
    static std::mutex& mutex = *new std::mutex;
    static std::deque<T>& handles = *new std::deque<T>;
    const std::lock_guard lock(mutex);
    value = &handles.emplace_back();
  }
  T* argument() { return value; }
  py::object result() { return to_python(*value); }
};

// NCCL may write these handles after the call as well. Their memory is never freed once the call
// has succeeded.
template <class T>
struct Outs {
  static constexpr bool visible = false;
  static constexpr bool returned = true;
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T[], Free> values;
  std::size_t size = 0;
  void load(const char* name, PyObject*, const CallArguments& call) {
    size = call.count(reference(name, 1));
    // calloc does not touch the pages, so a size that NCCL refuses uses no memory.
    values.reset(static_cast<T*>(std::calloc(std::max<std::size_t>(size, 1), sizeof(T))));
    if (!values) throw std::bad_alloc();
  }
  T* argument() { return values.get(); }
  py::object result() {
    const T* written = values.release();
    py::list list(size);
    for (std::size_t i = 0; i < size; ++i) list[i] = to_python(written[i]);
    return list;
  }
};

template <class T>
struct Array {
  static constexpr bool visible = true;
  static constexpr bool returned = false;
  std::vector<std::remove_const_t<T>> values;
  bool null = false;
  void load(const char* name, PyObject* object, const CallArguments& call) {
    null = object == Py_None;
    if (null) return;
    const std::string parameter(reference(name, 0));
    // A copy: the conversion of an item may run Python code that changes a list.
    const auto items = py::reinterpret_steal<py::object>(PySequence_Tuple(object));
    if (!items) {
      if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
      PyErr_Clear();
      throw_type_error(parameter.c_str(), "a sequence or None", object);
    }
    const auto size = static_cast<std::size_t>(PyTuple_GET_SIZE(items.ptr()));
    const std::size_t needed = call.count(reference(name, 1));
    if (size < needed)
      throw py::value_error(parameter + ": has " + std::to_string(size) + " items, " +
                            std::string(reference(name, 1)) + " is " + std::to_string(needed));
    for (std::size_t i = 0; i < size; ++i)
      values.push_back(from_python<std::remove_const_t<T>>(
          parameter.c_str(), PyTuple_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i))));
  }
  T* argument() { return null ? nullptr : values.data(); }
};

// A versioned struct of the caller, converted to the version of the library.
template <class T>
struct Struct {
  using Value = std::remove_const_t<T>;
  static constexpr bool visible = true;
  static constexpr bool returned = false;
  Value value{};
  bool null = false;
  void load(const char* name, PyObject* object, const CallArguments& call) {
    null = object == Py_None;
    if (null) return;
    value = struct_from_python<Value>(name, object);
    if constexpr (requires { call.library.fit(value); }) value = call.library.fit(value);
  }
  T* argument() { return null ? nullptr : &value; }
};

template <class T>
struct InOut {
  static constexpr bool visible = true;
  static constexpr bool returned = true;
  T value{};
  void load(const char* name, PyObject* object, const CallArguments&) {
    value = struct_from_python<T>(name, object);
  }
  T* argument() { return &value; }
  py::object result() { return py::cast(value); }
};

// A struct of the caller that this call, or a later one that receives its address, writes to. The
// object must live until then.
template <class T>
struct Filled {
  static constexpr bool visible = true;
  static constexpr bool returned = false;
  T* value = nullptr;
  void load(const char* name, PyObject* object, const CallArguments&) {
    py::detail::make_caster<T> caster;
    if (object == Py_None || !caster.load(object, false))
      throw_type_error(name, type_name<T>().c_str(), object);
    value = &py::detail::cast_op<T&>(caster);
  }
  T* argument() { return value; }
};

// Memory that the call writes. Another parameter gives its capacity.
struct ByteBuffer {
  static constexpr bool visible = false;
  static constexpr bool returned = true;
  std::string bytes;
  void load(const char* name, PyObject*, const CallArguments& call) {
    bytes.resize(call.count(reference(name, 1)));
  }
  void* argument() { return bytes.data(); }
  py::object result(std::size_t length) {
    return py::bytes(bytes.data(), std::min(length, bytes.size()));
  }
};

struct Strings {
  static constexpr bool visible = false;
  static constexpr bool returned = true;
  const char** table = nullptr;
  void load(const char*, PyObject*, const CallArguments&) {}
  const char*** argument() { return &table; }
  py::object result(std::size_t length) {
    py::list list(length);
    for (std::size_t i = 0; i < length; ++i) list[i] = to_python(table[i]);
    return list;
  }
};

}  // namespace pynccl::python
