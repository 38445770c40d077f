// Hooks: Python functions called around every operation of the mirror, and when a communicator is
// aborted.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

namespace pynccl::python::mirror {

namespace py = pybind11;

// All functions require the GIL.
class Hooks {
 public:
  // Whether hooks are registered. This load is the only cost if there are none.
  static bool any() { return any_; }

  // before, after and on_abort are callables or None. Returns the number to pass to remove().
  static std::size_t add(py::object before, py::object after, py::object on_abort);
  static void remove(std::size_t number);

  // Calls before(record), body, and after(record, work, error). body and this function return a new
  // reference, or nullptr with an exception raised. Exceptions of hooks go to sys.unraisablehook
  // and do not affect the operation.
  template <class Body>
  [[gnu::cold]] static PyObject* around(const py::object& comm_stream, const py::object& record,
                                        Body&& body) {
    const List hooks = hooks_;  // a hook may remove itself
    call_before(hooks, comm_stream, record);
    PyObject* result = body();
    call_after(hooks, record, result);
    return result;
  }

  // Calls on_abort(comm_stream, reason).
  static void notify_abort(const py::object& comm_stream, const std::string& reason);

 private:
  struct Hook {
    std::size_t number;
    py::object before, after, on_abort;
  };
  using List = std::vector<std::shared_ptr<Hook>>;

  static void call_before(const List& hooks, const py::object& comm_stream,
                          const py::object& record);
  static void call_after(const List& hooks, const py::object& record, PyObject* result);

  inline static bool any_ = false;
  inline static std::size_t next_ = 0;
  // Never destroyed: Python may be gone by then.
  inline static List& hooks_ = *new List;
};

}  // namespace pynccl::python::mirror
