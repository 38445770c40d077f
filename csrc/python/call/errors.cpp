#include "python/call/errors.h"

#include <pybind11/stl.h>

#include <cerrno>
#include <utility>

#include "comm/overlap.h"
#include "nccl/interrupt.h"
#include "python/call/gil.h"
#include "python/call/modules.h"

namespace pynccl::python {
namespace {

constexpr const char* kErrors = "pynccl.errors";
ModuleAttribute from_result{kErrors, "from_result"}, nccl_error{kErrors, "NcclError"},
    driver_error{kErrors, "DriverError"}, missing_function{kErrors, "MissingFunctionError"},
    library_not_found{kErrors, "LibraryNotFoundError"};

// Creates an exception, a RuntimeError if pynccl.errors is not imported. It runs inside a catch
// block. If the interpreter exits meanwhile, Python must not unwind the C++ exception that is being
// handled, so the thread sleeps.
template <class... Arguments>
py::object make(ModuleAttribute& maker, Arguments&&... arguments) {
  const py::tuple given = py::make_tuple(std::forward<Arguments>(arguments)...);
  PyObject* found = maker.get();
  PyObject* type = found ? found : PyExc_RuntimeError;
  const gil::SleepInsteadOfTerminate sleep;
  PyObject* error = gil::or_sleep([&] { return PyObject_Call(type, given.ptr(), nullptr); });
  if (!error) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(error);
}

void raise_python(const std::exception_ptr& pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const NcclFailure& e) {
    raise(error_object(e));
  } catch (const FunctionFailure& e) {
    raise(py::reinterpret_borrow<py::object>(static_cast<PyObject*>(e.thrown.get())));
  } catch (const DriverFailure& e) {
    raise(make(driver_error, e.what(), static_cast<int>(e.code), e.function));
  } catch (const MissingFunction& e) {
    raise(make(missing_function, e.what()));
  } catch (const LibraryNotFound& e) {
    raise(make(library_not_found, e.what()));
  }
}

PyObject* raised = nullptr;  // by a signal handler on the main thread

// Raises the exception that a signal handler raised while this thread was waiting in a library: see
// nccl/interrupt.h. Returns false if there is none.
bool raise_interrupt() {
  if (!Interrupt::pending()) return false;
  Interrupt::reset();
  const auto error = py::reinterpret_steal<py::object>(std::exchange(raised, nullptr));
  if (!error) return false;
  raise(error);
  return true;
}

// Raises the exception after a call that completed despite the interruption.
int raise_later(void*) { return raise_interrupt() ? -1 : 0; }

// Python runs signal handlers in its main thread, which is the main thread of the process.
bool run_handlers() {
  if (!Interrupt::on_main_thread() || !Py_IsInitialized()) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool interrupted = PyErr_CheckSignals() != 0;
  if (interrupted) {
    Py_XSETREF(raised, take_raised());
    Py_AddPendingCall(&raise_later, nullptr);
  }
  PyGILState_Release(state);
  return interrupted;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the signature is pybind11's
void translate(std::exception_ptr pointer) {
  if (!pointer || raise_interrupt()) return;
  try {
    raise_python(pointer);
  } catch (py::error_already_set& e) {
    e.restore();  // the exception could not be created, for example because of a KeyboardInterrupt
  }
}

}  // namespace

void throw_type_error(const char* argument, const char* expected, PyObject* value) {
  constexpr int kMost = 200;  // characters of a value, which may be a long list
  const py::object whole = py::repr(value), text = whole[py::slice(0, kMost, 1)];
  throw py::type_error(std::string(argument) + ": expected " + expected + ", got " +
                       std::string(py::str(text)) + (py::len(whole) > kMost ? "..." : "") + " (" +
                       Py_TYPE(value)->tp_name + ")");
}

void throw_conversion_error(const char* argument, const char* expected, PyObject* value) {
  const bool refused = PyErr_ExceptionMatches(PyExc_TypeError) ||
                       PyErr_ExceptionMatches(PyExc_OverflowError) ||
                       PyErr_ExceptionMatches(PyExc_BufferError);
  if (!refused) throw py::error_already_set();
  PyErr_Clear();
  throw_type_error(argument, expected, value);
}

void throw_os_error(const std::system_error& error) {
  const std::string text = error.what(), reason = ": " + error.code().message();
  const std::string file = text.substr(0, text.rfind(reason));
  errno = error.code().value();
  PyErr_SetFromErrnoWithFilename(PyExc_OSError, file.c_str());
  throw py::error_already_set();
}

void raise(const py::object& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

py::object error_object(const NcclFailure& failure) {
  std::optional<std::pair<std::vector<int>, std::string>> ranks;
  if (failure.missing) ranks.emplace(failure.missing->ranks, failure.missing->source);
  return make(from_result, failure.what(), static_cast<int>(failure.code), failure.function,
              failure.rank, ranks);
}

bool is_library_error(const py::error_already_set& error) {
  for (ModuleAttribute* type : {&nccl_error, &driver_error})
    if (PyObject* found = type->get(); found && error.matches(found)) return true;
  return false;
}

void bind_errors(py::module_& m) {
  Interrupt::set_check(&run_handlers);
  py::register_local_exception_translator(&translate);
  py::register_local_exception<OverlapError>(m, "OverlapError", PyExc_ValueError);
}

}  // namespace pynccl::python
