// METH_FASTCALL methods for classes defined by pybind11. Arguments are read from the C array that
// Python passes, without building a tuple or a dictionary.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <string>

#include "python/call/errors.h"

namespace pynccl::python {

// unwrap() reads pybind11's internal struct instance, whose layout is known for the versions below.
// check_instance_layout() compares it with pybind11's own cast when the module is imported.
static_assert(PYBIND11_VERSION_HEX >= 0x03000000 && PYBIND11_VERSION_HEX < 0x04000000,
              "fastcall.h is written for pybind11 3: check the layout of detail::instance");

// Returns the C++ object inside a pybind11 instance. The method descriptor has already checked the
// type of self.
template <class T>
[[gnu::always_inline]] inline T& unwrap(PyObject* self) {
  auto* instance = reinterpret_cast<py::detail::instance*>(self);
  if (!instance->simple_layout) [[unlikely]]  // a Python class with several bound bases
    return py::cast<T&>(py::handle(self));
  void* value = instance->simple_value_holder[0];
  if (!value) [[unlikely]]
    throw py::value_error("the object is not initialised: __init__ was not called");
  return *static_cast<T*>(value);
}

// Throws ImportError if unwrap() and pybind11's cast return different addresses for an instance of
// T. module.cpp calls it, so that an unknown layout fails the import.
template <class T>
void check_instance_layout(const py::object& instance) {
  if (&unwrap<T>(instance.ptr()) != py::cast<T*>(instance))
    throw py::import_error(
        "pynccl._C: the instance layout of pybind11 " PYBIND11_TOSTRING(
            PYBIND11_VERSION_MAJOR) "." PYBIND11_TOSTRING(PYBIND11_VERSION_MINOR) " is not the one "
        "that csrc/python/call/fastcall.h reads; build pynccl with another release of pybind11 3");
}

// The parameters of one function. The first Required are required, the first Positional can be
// passed by position, and all can be passed by name.
template <std::size_t Count, std::size_t Positional = Count, std::size_t Required = Positional>
class Signature {
 public:
  using Names = std::array<const char*, Count>;
  using Values = std::array<PyObject*, Count>;

  // The names must stay valid until the process exits. Requires the GIL.
  Signature(const char* function, const Names& names) : function_(function), names_(names) {
    for (std::size_t i = 0; i < Count; ++i) {
      interned_[i] = PyUnicode_InternFromString(names[i]);
      if (!interned_[i]) throw py::error_already_set();
    }
  }

  // Returns the arguments in the order of the names, nullptr for those not passed: the caller's
  // array if it is in order already, otherwise values.
  PyObject* const* parse(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                         Values& values) const {
    const auto given = static_cast<std::size_t>(nargs);
    if constexpr (Positional == Count)
      if (given == Count && !kwnames) [[likely]]
        return args;
    if (given > Positional) [[unlikely]]
      throw_count(given);
    for (std::size_t i = 0; i < Positional; ++i) values[i] = i < given ? args[i] : nullptr;
    for (std::size_t i = Positional; i < Count; ++i) values[i] = nullptr;
    if (kwnames) take_keywords(values, args + nargs, kwnames);
    for (std::size_t i = 0; i < Required; ++i)
      if (!values[i]) [[unlikely]]
        throw_missing(names_[i]);
    return values.data();
  }

 private:
  void take_keywords(Values& values, PyObject* const* arguments, PyObject* kwnames) const {
    const Py_ssize_t count = PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t k = 0; k < count; ++k) {
      PyObject* keyword = PyTuple_GET_ITEM(kwnames, k);
      const std::size_t i = find(keyword);
      if (i == Count) [[unlikely]]
        throw_keyword("() got an unexpected keyword argument '", keyword);
      if (values[i]) [[unlikely]]
        throw_keyword("() got multiple values for argument '", keyword);
      values[i] = arguments[k];
    }
  }

  // Keyword names at a call site are interned, so comparing addresses is enough. Names from a
  // dictionary may not be.
  std::size_t find(PyObject* keyword) const {
    for (std::size_t i = 0; i < Count; ++i)
      if (interned_[i] == keyword) [[likely]]
        return i;
    std::size_t i = 0;
    while (i < Count && PyUnicode_Compare(interned_[i], keyword) != 0) ++i;
    return i;
  }

  [[noreturn]] void throw_count(std::size_t given) const {
    throw py::type_error(std::string(function_) + "() takes at most " + std::to_string(Positional) +
                         " positional arguments, got " + std::to_string(given));
  }
  [[noreturn]] void throw_missing(const char* name) const {
    throw py::type_error(std::string(function_) + "() missing required argument '" + name + "'");
  }
  [[noreturn]] void throw_keyword(const char* what, PyObject* keyword) const {
    throw py::type_error(function_ + (what + std::string(py::str(py::handle(keyword)))) + "'");
  }

  const char* function_;
  Names names_;
  std::array<PyObject*, Count> interned_{};
};

// An argument that may be None; nullptr for None.
inline PyObject* given(PyObject* argument) { return argument == Py_None ? nullptr : argument; }

using FastMethod = PyObject* (*)(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                                 PyObject* kwnames);

// Adds a method to a class defined by pybind11. The definition must live as long as the class.
inline void add_method(const py::handle& type, PyMethodDef& definition) {
  auto descriptor = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &definition));
  if (!descriptor) throw py::error_already_set();
  py::setattr(type, definition.ml_name, descriptor);
}

inline PyMethodDef fast_method(const char* name, FastMethod function, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | METH_KEYWORDS, doc};
}

inline PyMethodDef fast_method(const char* name, PyCFunction function, const char* doc) {
  return {name, function, METH_NOARGS, doc};
}

}  // namespace pynccl::python
