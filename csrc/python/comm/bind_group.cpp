// group() and its context manager. Programs call it in every step, so it bypasses pybind11's
// dispatcher.
#include "python/call/bind.h"
#include "python/call/fastcall.h"
#include "python/comm/group.h"

namespace pynccl::python {
namespace {

// Stateless: open groups belong to threads, so one object is enough.
struct GroupContext {};

PyObject* context;

PyObject* enter(PyObject* self, PyObject*) {
  return guarded([&] {
    Group::of_this_thread().enter();
    return Py_NewRef(self);
  });
}

PyObject* exit(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return guarded([&] {
    static const Signature<3> signature("__exit__", {"type", "value", "traceback"});
    Signature<3>::Values values;
    const bool failed = signature.parse(args, nargs, kwnames, values)[0] != Py_None;
    Group::of_this_thread().exit(failed);
    return Py_NewRef(Py_False);
  });
}

PyObject* group(PyObject*, PyObject*) { return Py_NewRef(context); }

constexpr char kGroupDoc[] =
    "group()\n--\n\n"
    R"(Issue the operations of a with block as one NCCL group (ncclGroupStart, ncclGroupEnd).

Operations are checked when they are called and issued together when the outermost group ends. Sends
and receives in a group cannot deadlock, whatever their order, one thread can drive several ranks,
and communicators created inside are ready after the block. An exception inside the block drops all
operations of the group and leaves the communicators usable. Other calls, such as close() and
abort(), take effect immediately. Groups can be nested and are per thread.

Returns:
    A context manager.

Raises:
    ValueError: at the end of the block, if a communicator or window of the group was closed inside,
        or an operation writes memory that another one uses; nothing was issued.
    NcclError: at the end of the block, if NCCL rejects an operation.)";

}  // namespace

void bind_group(py::module_& m) {
  const py::class_<GroupContext> type(m, "GroupContext", "The context manager of group().");
  static PyMethodDef methods[] = {
      fast_method("__enter__", &enter, "__enter__($self)\n--\n\n"),
      fast_method("__exit__", &exit, "__exit__($self, type, value, traceback, /)\n--\n\n")};
  for (PyMethodDef& method : methods) add_method(type, method);
  context = py::cast(GroupContext()).release().ptr();
  static PyMethodDef functions[] = {fast_method("group", &group, kGroupDoc), {}};
  if (PyModule_AddFunctions(m.ptr(), functions) != 0) throw py::error_already_set();
}

}  // namespace pynccl::python
