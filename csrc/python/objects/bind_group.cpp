// group() and the context manager that it returns. They are called around every exchange of a step,
// so they do not pass through pybind11's dispatcher.
#include "python/call/fastcall.h"
#include "python/objects/bind.h"
#include "python/objects/group.h"

namespace pynccl::python {
namespace {

// It has no state, for groups nest per thread: one object serves all.
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
    R"(Fuse what the with block calls into one NCCL group (ncclGroupStart, ncclGroupEnd).

Operations are checked when they are called and issued together when the outermost group ends: sends
and receives in any order cannot deadlock, one thread can drive several ranks, and communicators
made inside are ready afterwards. An exception inside drops all that was called and leaves every
communicator usable. What is no operation, such as close() and abort(), takes effect at once.

Raises:
    NcclError: at the end of the block, if NCCL refuses an operation.)";

}  // namespace

void bind_group(py::module_& m) {
  const py::class_<GroupContext> type(
      m, "GroupContext", "What group() returns; groups nest, each thread has its own.");
  static PyMethodDef methods[] = {
      fast_method("__enter__", &enter, "__enter__($self)\n--\n\n"),
      fast_method("__exit__", &exit, "__exit__($self, type, value, traceback, /)\n--\n\n")};
  for (PyMethodDef& method : methods) add_method(type, method);
  context = py::cast(GroupContext()).release().ptr();
  static PyMethodDef functions[] = {fast_method("group", &group, kGroupDoc), {}};
  if (PyModule_AddFunctions(m.ptr(), functions) != 0) throw py::error_already_set();
}

}  // namespace pynccl::python
