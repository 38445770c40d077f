#include "python/mirror/hooks.h"

#include <algorithm>
#include <utility>

#include "python/call/bind.h"

namespace pynccl::python::mirror {
namespace {

template <class... Arguments>
void call_hook(const py::object& hook, Arguments&&... arguments) {
  if (hook.is_none()) return;
  PyObject* result = PyObject_CallFunctionObjArgs(hook.ptr(), arguments.ptr()..., nullptr);
  if (!result) PyErr_WriteUnraisable(hook.ptr());
  Py_XDECREF(result);
}

}  // namespace

std::size_t Hooks::add(py::object before, py::object after, py::object on_abort) {
  const std::size_t number = next_++;
  hooks_.push_back(std::make_shared<Hook>(
      Hook{number, std::move(before), std::move(after), std::move(on_abort)}));
  any_ = true;
  return number;
}

void Hooks::remove(std::size_t number) {
  const auto found = std::find_if(hooks_.begin(), hooks_.end(),
                                  [&](const auto& hook) { return hook->number == number; });
  if (found == hooks_.end()) return;
  // Released on return, since that may run code that calls add() or remove().
  const std::shared_ptr<Hook> removed = std::move(*found);
  hooks_.erase(found);
  any_ = !hooks_.empty();
}

void Hooks::call_before(const List& hooks, const py::object& comm_stream,
                        const py::object& record) {
  record.attr("comm_stream") = comm_stream;
  for (const auto& hook : hooks) call_hook(hook->before, record);
}

void Hooks::call_after(const List& hooks, const py::object& record, PyObject* result) {
  if (result) {
    const auto work = py::reinterpret_borrow<py::object>(result);
    for (const auto& hook : hooks) call_hook(hook->after, record, work, py::none());
    return;
  }
  py::error_already_set raised;
  for (const auto& hook : hooks) call_hook(hook->after, record, py::none(), raised.value());
  raised.restore();
}

void Hooks::notify_abort(const py::object& comm_stream, const std::string& reason) {
  if (!any_) return;
  const List hooks = hooks_;
  for (const auto& hook : hooks) call_hook(hook->on_abort, comm_stream, py::str(reason));
}

void bind_hooks(py::module_& m) {
  m.def("add_operation_hooks", &Hooks::add, py::arg("before"), py::arg("after"),
        py::arg("on_abort"),
        R"(Register functions to call around every operation of the mirror.

Args:
    before: before(record), or None.
    after: after(record, work, error), or None.
    on_abort: on_abort(comm_stream, reason), or None.

Returns:
    The number to pass to remove_operation_hooks().)");
  m.def("remove_operation_hooks", &Hooks::remove, py::arg("number"),
        "Remove the hooks of an add_operation_hooks() call. Removing them twice is allowed.");
  m.def("notify_abort", &Hooks::notify_abort, py::arg("comm_stream"), py::arg("reason"),
        "Call the on_abort hooks.");
}

}  // namespace pynccl::python::mirror
