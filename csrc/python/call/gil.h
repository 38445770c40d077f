// GilReleased and GilAcquired release and acquire the GIL for a scope. If the interpreter exits, a
// thread waiting for the GIL sleeps until the process has exited. Before 3.14, Python ends such a
// thread with pthread_exit, which would unwind through destructors and abort the process.
// pybind11's gil_scoped_release is not used because it also looks up pybind11's thread state, which
// costs as much as all other checks of a call.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>

#include <utility>

namespace pynccl::python {

namespace gil {
[[noreturn, gnu::cold]] void sleep_until_exit();

// Calls body, and sleeps if Python ends this thread during the call.
template <class Body>
auto or_sleep(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const ::abi::__forced_unwind&) {  // pthread_exit
    sleep_until_exit();
  }
}

// For a scope: if Python ends this thread and the C++ runtime would call std::terminate(), the
// thread sleeps instead.
class SleepInsteadOfTerminate {
 public:
  SleepInsteadOfTerminate();
  ~SleepInsteadOfTerminate();
  SleepInsteadOfTerminate(const SleepInsteadOfTerminate&) = delete;
  SleepInsteadOfTerminate& operator=(const SleepInsteadOfTerminate&) = delete;

 private:
  bool before_;
};

PyGILState_STATE ensure();

// The same for the rest of the calling thread, which runs foreign C++ code that does not expect a
// forced unwind.
void sleep_instead_of_terminate();
}  // namespace gil

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    gil::or_sleep([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

// Can be used on any thread, whether or not it holds the GIL.
class GilAcquired {
 public:
  GilAcquired() : state_(gil::ensure()) {}
  ~GilAcquired() {
    if (!PyGILState_Check()) [[unlikely]]
      gil::sleep_until_exit();  // Python is ending this thread, in code that the scope called
    PyGILState_Release(state_);
  }
  GilAcquired(const GilAcquired&) = delete;
  GilAcquired& operator=(const GilAcquired&) = delete;

 private:
  PyGILState_STATE state_;
};

// Clears the current exception and returns it with its traceback, a new reference.
PyObject* take_raised();

// Calls a Python function with a tuple of arguments, or none, from a C++ thread that has acquired
// the GIL. An exception goes to sys.unraisablehook and is returned as a new reference; otherwise
// the result is null.
PyObject* call_reporting(PyObject* callable, PyObject* arguments = nullptr);

}  // namespace pynccl::python
