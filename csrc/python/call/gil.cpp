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
  if (sleeps_instead && !Py_IsInitialized()) sleep_until_exit();
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

PyGILState_STATE ensure() {
  // A thread without a state of Python cannot get one any more.
  if (!Py_IsInitialized() && !PyGILState_GetThisThreadState()) sleep_until_exit();
  return or_sleep([] { return PyGILState_Ensure(); });
}

}  // namespace gil

void call_reporting(PyObject* callable, PyObject* arguments) {
  // No objects of C++: where Python ends the thread they would be released without the GIL.
  gil::or_sleep([&] {
    PyObject* const result = PyObject_CallObject(callable, arguments);
    if (!result) PyErr_WriteUnraisable(callable);
    Py_XDECREF(result);
  });
}

}  // namespace pynccl::python
