#include "python/call/errors.h"

#include <pybind11/stl.h>

#include <utility>

#include "comm/overlap.h"
#include "python/call/gil.h"
#include "python/call/interrupt.h"

namespace pynccl::python {
namespace {

// The classes of pynccl.errors, passed in by set_exceptions() and never released.
struct Exceptions {
  PyObject* from_result = nullptr;  // a function that builds the NcclError of a result
  PyObject* nccl = nullptr;
  PyObject* driver = nullptr;
  PyObject* missing_function = nullptr;
  PyObject* library_not_found = nullptr;
};

Exceptions exceptions;

// Creates an exception of an injected class, or a RuntimeError before pynccl.errors is imported.
// It runs inside a catch block. If the interpreter exits meanwhile, Python must not unwind the C++
// exception that is being handled, so the thread sleeps.
template <class... Arguments>
py::object make(PyObject* injected, Arguments&&... arguments) {
  const py::tuple given = py::make_tuple(std::forward<Arguments>(arguments)...);
  PyObject* type = injected ? injected : PyExc_RuntimeError;
  const gil::SleepInsteadOfTerminate sleep;
  PyObject* error = gil::or_sleep([&] { return PyObject_Call(type, given.ptr(), nullptr); });
  if (!error) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(error);
}

void raise_python(const std::exception_ptr& pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const NcclFailure& e) {
    raise(error_object(e.code, e.function.c_str(), e.rank, e.what(), e.missing));
  } catch (const FunctionFailure& e) {
    raise(py::reinterpret_borrow<py::object>(static_cast<PyObject*>(e.thrown.get())));
  } catch (const DriverFailure& e) {
    raise(make(exceptions.driver, e.what(), static_cast<int>(e.code), e.function));
  } catch (const MissingFunction& e) {
    raise(make(exceptions.missing_function, e.what()));
  } catch (const LibraryNotFound& e) {
    raise(make(exceptions.library_not_found, e.what()));
  }
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

void set_exceptions(const py::object& from_result, const py::object& nccl, const py::object& driver,
                    const py::object& missing_function, const py::object& library_not_found) {
  exceptions = {py::object(from_result).release().ptr(), py::object(nccl).release().ptr(),
                py::object(driver).release().ptr(), py::object(missing_function).release().ptr(),
                py::object(library_not_found).release().ptr()};
}

}  // namespace

void throw_type_error(const char* argument, const char* expected, PyObject* value) {
  throw py::type_error(std::string(argument) + ": expected " + expected + ", got " +
                       std::string(py::repr(value)) + " (" + Py_TYPE(value)->tp_name + ")");
}

void raise(const py::object& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

py::object error_object(ncclResult_t code, const char* function, int rank, const std::string& text,
                        const std::optional<MissingRanks>& missing) {
  if (code == ncclSuccess) return py::none();
  std::optional<std::pair<std::vector<int>, std::string>> ranks;
  if (missing) ranks.emplace(missing->ranks, missing->source);
  return make(exceptions.from_result, text, static_cast<int>(code), function, rank, ranks);
}

bool is_library_error(const py::error_already_set& error) {
  return (exceptions.nccl && error.matches(exceptions.nccl)) ||
         (exceptions.driver && error.matches(exceptions.driver));
}

void bind_errors(py::module_& m) {
  py::register_local_exception_translator(&translate);
  py::register_local_exception<OverlapError>(m, "OverlapError", PyExc_ValueError);
  m.def("set_exceptions", &set_exceptions, py::arg("from_result"), py::arg("nccl"),
        py::arg("driver"), py::arg("missing_function"), py::arg("library_not_found"),
        R"(Set the exceptions that this module raises. Called by pynccl.errors on import.

Args:
    from_result: a function (text, code, function, rank, missing) that returns the NcclError for a
        result.
    nccl: NcclError, the base class of the exceptions that from_result returns.
    driver: DriverError, called with (text, code, function).
    missing_function: MissingFunctionError, called with (text).
    library_not_found: LibraryNotFoundError, called with (text).)");
}

}  // namespace pynccl::python
