// Fast functions: callables in C++ that do the common case of a function of the mirror, and call
// the function in Python, with the same arguments, for every other case, mistakes included. So each
// signature, each documentation and each error text exists once, in Python.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <span>

namespace pynccl::python::mirror {

namespace py = pybind11;

class FastFunction;

// The index of an argument in the array that the body of a fast function gets. The parameters of
// the function in Python are resolved to indices by name, when the fast function is attached.
enum ArgIndex : std::uint8_t {
  kTensor,
  kOut,
  kOp,
  kGroup,
  kAsyncOp,
  kGlobalRank,  // of the root or the peer
  kGroupRank,   // the same, as a rank of the group
  kTag,
  kOpList,
};

// What an argument that is not given stands for.
enum class Default { kRequired, kNone, kFalse, kZero, kSum };

struct Parameter {
  const char* name = nullptr;
  std::uint8_t index = 0;  // an ArgIndex, or what else the caller of match() counts by
  Default default_value = Default::kRequired;
};

// The parameters of a function in Python, for matching the arguments of a call.
class Parameters {
 public:
  static constexpr std::size_t kMost = 6;
  static constexpr std::size_t kIndices = 9;
  using Values = std::array<PyObject*, kIndices>;
  using Expected = std::array<Parameter, kMost>;  // unused ones have no name

  // Takes the order of the parameters from inspect.signature(function). Throws TypeError unless
  // they are the expected ones, in any order, with the expected defaults.
  Parameters(const py::function& function, const Expected& expected);

  // Puts the arguments of a call at the indices of their parameters, nullptr for those that are not
  // given. Returns false for calls that only the Python function can handle.
  bool match(PyObject* const* args, std::size_t nargs, PyObject* kwnames, Values& values) const;

 private:
  std::size_t count_ = 0;
  std::array<PyObject*, kMost> names_{};  // interned, never released
  std::array<std::uint8_t, kMost> indices_{};
};

// What a function is as the op of a P2POp.
enum class Direction { kNone, kSend, kReceive };

// The fast function for a function in Python of this name.
struct FastSpec {
  // Returns a new reference, nullptr with an exception raised, or fallback() if Python's function
  // is to be called: then nothing has happened. What it throws becomes an exception in Python.
  using Body = PyObject* (*)(const FastFunction& function, PyObject* const* values);

  const char* name;
  Parameters::Expected parameters;
  Body body;
  Direction direction = Direction::kNone;
};

// The result of a body that leaves the call to Python's function; not a reference.
inline PyObject* fallback() { return Py_NotImplemented; }

// Counts the calls of a name that went to Python's function.
std::size_t& fallback_count(const std::string& name);

std::span<const FastSpec> one_tensor_specs();
std::span<const FastSpec> p2p_specs();

// The C++ part of a fast function. The callable object has the rest (its name, its documentation)
// from Python's function in its dictionary.
class FastFunction {
 public:
  FastFunction(const FastSpec& spec, const py::function& function);

  const FastSpec& spec() const { return spec_; }
  PyObject* name() const { return name_.ptr(); }
  const Parameters& parameters() const { return parameters_; }
  void count_fallback() const { ++fallbacks_; }

  // The FastFunction in a callable object, nullptr for any other object.
  static const FastFunction* in(PyObject* object);

 private:
  const FastSpec& spec_;
  py::object name_;
  Parameters parameters_;
  std::size_t& fallbacks_;
};

}  // namespace pynccl::python::mirror
