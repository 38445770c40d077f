// Functions of torch.distributed's names in C++: each does what is common, and leaves everything
// else, mistakes included, to a function in Python with the same parameters. So there is one
// signature, one documentation and one text for each mistake: Python's.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <span>

namespace pynccl::python::mirror {

namespace py = pybind11;

class Function;

// The parameters of a function.
class Parameters {
 public:
  static constexpr std::size_t kMost = 6;
  using Names = std::array<const char*, kMost>;
  using Values = std::array<PyObject*, kMost>;

  // Needs the GIL.
  explicit Parameters(const Names& in_order);

  // Puts the arguments into the order of the parameters, nullptr for one that was not given; false
  // where that is not simple.
  bool match(PyObject* const* args, std::size_t nargs, PyObject* kwnames, Values& values) const;

 private:
  std::size_t count_ = 0;
  std::array<PyObject*, kMost> names_{};  // interned, for good
};

// What a function is as the op of a P2POp.
enum class Direction { kNone, kSend, kReceive };

// A function in C++, by the name of the one in Python that it stands before.
struct Form {
  // Gets the arguments in the order of the parameters, and gives a new reference, nullptr with an
  // exception raised, or declined(): then nothing has happened.
  using Body = PyObject* (*)(const Function& function, PyObject* const* values);

  const char* name;
  Parameters::Names parameters;
  Body body;
  Direction direction = Direction::kNone;
};

// What a body gives that leaves the call to Python; not a reference.
inline PyObject* declined() { return Py_NotImplemented; }

std::span<const Form> one_tensor_forms();
std::span<const Form> p2p_forms();

// The C++ part of a callable object, which has the rest (its name, its documentation) from Python's
// function in its dictionary.
class Function {
 public:
  Function(const Form& form, py::object name)
      : form_(form), name_(std::move(name)), parameters_(form.parameters) {}

  const Form& form() const { return form_; }
  PyObject* name() const { return name_.ptr(); }
  const Parameters& parameters() const { return parameters_; }

  // The one in a callable object, nullptr for any other object.
  static const Function* in(PyObject* object);

 private:
  const Form& form_;
  py::object name_;
  Parameters parameters_;
};

}  // namespace pynccl::python::mirror
