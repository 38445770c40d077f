#include "python/call/interrupt.h"

#include <pybind11/pybind11.h>

#include <utility>

#include "nccl/interrupt.h"

namespace pynccl::python {
namespace {

PyObject* raised = nullptr;  // by a signal handler on the main thread

// Raises the exception after a call that completed despite the interruption.
int raise_later(void*) { return raise_interrupt() ? -1 : 0; }

// Python runs signal handlers in its main thread, which is the main thread of the process.
bool run_handlers() {
  if (!Interrupt::on_main_thread() || !Py_IsInitialized()) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool interrupted = PyErr_CheckSignals() != 0;
  if (interrupted) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    Py_XSETREF(raised, value);
    Py_AddPendingCall(&raise_later, nullptr);
  }
  PyGILState_Release(state);
  return interrupted;
}

}  // namespace

void bind_interrupt() { Interrupt::set_check(&run_handlers); }

bool raise_interrupt() {
  if (!Interrupt::pending()) return false;
  Interrupt::reset();
  PyObject* value = std::exchange(raised, nullptr);
  if (!value) return false;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
  Py_DECREF(value);
  return true;
}

}  // namespace pynccl::python
