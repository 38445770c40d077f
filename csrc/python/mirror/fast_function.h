// Fast functions: C++ callables that handle the common case of a function of the mirror. In every
// other case, including invalid arguments, they call the Python function with the same arguments,
// so signatures, docstrings and error texts exist only in Python.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "nccl/failure.h"

namespace pynccl::python::mirror {

namespace py = pybind11;

// The Python classes and operators that the fast functions use, set by set_work_class() and
// set_group_classes() when the mirror is imported.
struct PythonClasses {
  PyTypeObject* tensor = nullptr;  // torch.Tensor
  PyTypeObject* work = nullptr;    // pynccl.Work
  PyTypeObject* group = nullptr;   // pynccl.ProcessGroup
  // Operator arguments and the RedOps that they stand for; torch's SUM first.
  std::vector<std::pair<PyObject*, PyObject*>> operators;
};

inline PythonClasses classes;

inline bool is_tensor(PyObject* object) {
  return object &&
         (Py_TYPE(object) == classes.tensor || PyObject_TypeCheck(object, classes.tensor));
}

class FastFunction;

// The index of an argument in the array passed to the body of a fast function. The parameters of
// the Python function are mapped to indices by name when the fast function is attached.
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

struct Parameter {
  const char* name = nullptr;
  std::uint8_t index = 0;  // an ArgIndex, or another numbering of the caller of match()
};

// The parameters of a Python function, for matching the arguments of a call.
class Parameters {
 public:
  static constexpr std::size_t kMost = 6;
  static constexpr std::size_t kIndices = 9;
  using Values = std::array<PyObject*, kIndices>;
  using Expected = std::array<Parameter, kMost>;  // unused entries have no name

  // Reads the order of the parameters from the function's code. Throws TypeError unless they are
  // the expected ones, in any order.
  Parameters(const py::function& function, const Expected& expected);

  // Stores the arguments of a call at the indices of their parameters, nullptr for those not
  // passed. Returns false for calls that only the Python function can handle.
  bool match(PyObject* const* args, std::size_t nargs, PyObject* kwnames, Values& values) const;

 private:
  std::size_t count_ = 0;
  std::array<PyObject*, kMost> names_{};  // interned, never released
  std::array<std::uint8_t, kMost> indices_{};
};

// The meaning of a function as the op of a P2POp.
enum class Direction { kNone, kSend, kReceive };

// Describes the fast function for the Python function of this name.
struct FastSpec {
  // Returns a new reference, nullptr with an exception raised, or fallback() if the Python function
  // must be called. In that case it has had no effect. C++ exceptions are raised in Python.
  using Body = PyObject* (*)(const FastFunction& function, PyObject* const* values);

  const char* name;
  Parameters::Expected parameters;
  Body body;
  Direction direction = Direction::kNone;
};

// The result of a body that leaves the call to the Python function; not a reference.
inline PyObject* fallback() { return Py_NotImplemented; }

// Runs the checks of a body. Returns false if they fail or the communication stream cannot be
// created; the Python function then repeats them and raises the right exception. Other exceptions
// (std::bad_alloc, KeyboardInterrupt) propagate.
template <class Checks>
bool passes(Checks&& checks) {
  try {
    if (checks()) [[likely]]
      return true;
  } catch (const py::builtin_exception&) {
  } catch (const std::invalid_argument&) {
  } catch (const NcclFailure&) {
  } catch (const DriverFailure&) {
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_ValueError) &&
        !error.matches(PyExc_BufferError) && !error.matches(PyExc_OverflowError))
      throw;
  }
  PyErr_Clear();
  return false;
}

std::span<const FastSpec> one_tensor_specs();
std::span<const FastSpec> p2p_specs();

// The C++ part of a fast function. The name and the docstring are in the dictionary of the callable
// object, copied from the Python function.
class FastFunction {
 public:
  FastFunction(const FastSpec& spec, const py::function& function);

  const FastSpec& spec() const { return spec_; }
  PyObject* name() const { return name_.ptr(); }
  const Parameters& parameters() const { return parameters_; }

  // The FastFunction of a callable object; nullptr for any other object.
  static const FastFunction* in(PyObject* object);

 private:
  const FastSpec& spec_;
  py::object name_;
  Parameters parameters_;
};

}  // namespace pynccl::python::mirror
