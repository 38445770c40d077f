// GilReleased and GilAcquired: release and acquire the GIL during a scope. When the
// interpreter ends, a thread that waits for the GIL sleeps until the process has ended: before 3.14
// Python ends it with pthread_exit, which would unwind through destructors and abort the process.
// pybind11's gil_scoped_release costs as much as all checks of a call, since it also looks up
// pybind11's thread state.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>

#include <utility>

namespace pynccl::python {

namespace gil {
[[noreturn, gnu::cold]] void sleep_until_exit();

// Calls body, in which Python may end this thread.
template <class Body>
auto or_sleep(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const ::abi::__forced_unwind&) {  // pthread_exit
    sleep_until_exit();
  }
}

// While one lives: where Python has ended this thread and the C++ runtime would call
// std::terminate(), the thread sleeps.
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

// The calling thread calls C++ of others, which does not expect to be ended: instead of
// std::terminate() it sleeps once the interpreter has ended.
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

// For any thread, whether it has the GIL or not.
class GilAcquired {
 public:
  GilAcquired() : state_(gil::ensure()) {}
  ~GilAcquired() {
    if (!PyGILState_Check()) [[unlikely]]
      gil::sleep_until_exit();  // Python is ending this thread, in code that was called meanwhile
    PyGILState_Release(state_);
  }
  GilAcquired(const GilAcquired&) = delete;
  GilAcquired& operator=(const GilAcquired&) = delete;

 private:
  PyGILState_STATE state_;
};

// Calls a function of Python with a tuple of arguments, or none, on a thread of C++ that has
// acquired the GIL. What it raises goes to sys.unraisablehook, and is returned as a new reference;
// else null.
PyObject* call_reporting(PyObject* callable, PyObject* arguments = nullptr);

}  // namespace pynccl::python
