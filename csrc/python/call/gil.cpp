#include "python/call/gil.h"

#include <unistd.h>

namespace pynccl::python {

namespace gil {

void sleep_until_exit() {
  for (;;) pause();
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
