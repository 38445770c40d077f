#include "interpreter.h"

#include <c10/util/Exception.h>
#include <sys/syscall.h>

namespace pynccl::dist {

Held hold(py::object object) {
  return Held(new py::object(std::move(object)), [](py::object* held) {
    if (!Py_IsInitialized()) return;  // objects cannot be freed after finalization
    with_gil([held] { delete held; });
  });
}

void Ending::stay() {
  if (exempt_ || std::this_thread::get_id() == main_.load()) return;
  if (Py_IsInitialized() && PyGILState_Check()) return;  // it must not sleep with the GIL
  while (true) pause();
}

void run_signal_handlers() {
  // Python runs signal handlers in the main thread of the process.
  if (syscall(SYS_gettid) != getpid() || !Py_IsInitialized()) return;
  with_gil([] {
    // The calls include the exception of a handler that interrupted an operation of this thread.
    if (PyErr_CheckSignals() != 0 || Py_MakePendingCalls() != 0) throw py::error_already_set();
  });
}

void throw_backend_error(const std::string& text) { C10_THROW_ERROR(DistBackendError, text); }

void throw_python_error(const py::error_already_set& error) {
  if (!error.matches(PyExc_Exception)) throw;
  const auto text = py::str(error.value()).cast<std::string>();
  TORCH_CHECK_VALUE(!error.matches(PyExc_ValueError), text);
  TORCH_CHECK_TYPE(!error.matches(PyExc_TypeError), text);
  throw_backend_error(text);
}

}  // namespace pynccl::dist
