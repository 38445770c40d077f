#include "python/call/errors.h"

namespace pynccl::python {
namespace {

py::object classes() { return py::module_::import("pynccl.errors"); }

void raise(const py::object& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

void raise_python(const std::exception_ptr& pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const NcclFailure& e) {
    raise(error_object(e.code, e.function.c_str(), e.rank, e.what()));
  } catch (const DriverFailure& e) {
    raise(classes().attr("DriverError")(e.what(), static_cast<int>(e.code), e.function));
  } catch (const MissingFunction& e) {
    raise(classes().attr("MissingFunctionError")(e.what()));
  } catch (const LibraryNotFound& e) {
    raise(classes().attr("LibraryNotFoundError")(e.what()));
  }
}

void translate(std::exception_ptr pointer) {
  if (!pointer) return;
  try {
    raise_python(pointer);
  } catch (py::error_already_set& e) {
    e.restore();  // such as a KeyboardInterrupt that waited for Python code to run
  }
}

}  // namespace

void throw_type_error(const char* argument, const char* expected, PyObject* value) {
  throw py::type_error(std::string(argument) + ": expected " + expected + ", got " +
                       std::string(py::repr(value)) + " (" + Py_TYPE(value)->tp_name + ")");
}

py::object error_object(ncclResult_t code, const char* function, int rank,
                        const std::string& text) {
  if (code == ncclSuccess) return py::none();
  return classes().attr("from_result")(text, static_cast<int>(code), function, rank);
}

void register_exceptions(py::module_&) { py::register_local_exception_translator(&translate); }

}  // namespace pynccl::python
