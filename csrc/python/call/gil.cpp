#include "python/call/gil.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>

namespace pynccl::python {

namespace gil {
namespace {

thread_local bool sleeps_instead = false;
std::terminate_handler previous_handler;

[[noreturn]] void sleep_or_terminate() {
  if (sleeps_instead && (!Py_IsInitialized() || !PyGILState_Check())) sleep_until_exit();
  if (previous_handler) previous_handler();
  std::abort();
}

}  // namespace

void sleep_until_exit() {
  for (;;) pause();
}

void sleep_instead_of_terminate() {
  static const bool installed = [] {
    previous_handler = std::set_terminate(&sleep_or_terminate);
    return true;
  }();
  sleeps_instead = installed;
}

SleepInsteadOfTerminate::SleepInsteadOfTerminate() : before_(sleeps_instead) {
  sleep_instead_of_terminate();
}

SleepInsteadOfTerminate::~SleepInsteadOfTerminate() { sleeps_instead = before_; }

PyGILState_STATE ensure() {
  // A thread without a Python thread state can no longer create one.
  if (!Py_IsInitialized() && !PyGILState_GetThisThreadState()) sleep_until_exit();
  return or_sleep([] { return PyGILState_Ensure(); });
}

}  // namespace gil

PyObject* take_raised() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return value;
}

PyObject* call_reporting(PyObject* callable, PyObject* arguments) {
  // No C++ objects here: if Python ends the thread, they would be released without the GIL.
  return gil::or_sleep([&] {
    PyObject* const result = PyObject_CallObject(callable, arguments);
    Py_XDECREF(result);
    if (result) return static_cast<PyObject*>(nullptr);
    PyObject* const value = take_raised();
    Py_INCREF(value);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
    PyErr_WriteUnraisable(callable);
    return value;
  });
}

}  // namespace pynccl::python
