#include "python/mirror/work.h"

#include "python/call/bind.h"
#include "python/call/fastcall.h"
#include "python/call/gil.h"
#include "python/convert/stream.h"
#include "python/mirror/fast_function.h"
#include "watch/trace.h"

namespace pynccl::python::mirror {

CUstream Work::current_stream() const {
  const Library& library = communicator->library();
  if (library.memory() == Memory::kDevice && !view.api) [[unlikely]]
    throw py::type_error(
        "tensor: asynchronous operations need a tensor with DLPack's C exchange API, which torch "
        "supports since 2.10");
  return resolve_stream(nullptr, view, library);
}

PyObject* make_work(Work&& work) {
  PyObject* self = Native<Work>::make(classes.work);
  Native<Work>::of(self) = std::move(work);
  return self;
}

void explain(const py::object& comm_stream, PyObject* kind) {
  py::error_already_set raised;
  try {
    if (is_library_error(raised))
      raise(comm_stream.attr("explain")(py::handle(kind), raised.value()));
    else
      raised.restore();
  } catch (py::error_already_set& failed) {
    failed.restore();
  }
}

namespace {

Work& started(PyObject* self) {
  Work& work = Native<Work>::of(self);
  if (!work.operation) [[unlikely]]
    throw py::value_error("the work was never started");
  return work;
}

// Whether the communicator may have failed. NCCL reports an operation that was ended by a
// revocation or an abort as done, so the state of the operation is not enough.
bool failed(const Work& work) {
  Communicator& communicator = *work.communicator;
  return communicator.expired() || communicator.revoked() || communicator.closed() ||
         communicator.async_error() != ncclSuccess;
}

// Keeps the first error. Once the operation is known to be done, a new error of the communicator
// belongs to a later operation.
void note_error(Work& work) {
  if (work.error || work.waited) return;
  if (!failed(work)) [[likely]]
    return;
  const py::object error = work.comm_stream.attr("error")(work.name);
  if (!error.is_none()) work.error = error;
}

[[noreturn]] void raise_error(const Work& work) {
  raise(work.error);
  throw py::error_already_set();
}

// is_done: whether the operation is known to be done, not only ordered before a stream.
PyObject* finish_wait(Work& work, bool is_done) {
  work.operation->release();
  note_error(work);
  work.waited = is_done;
  if (work.error) [[unlikely]]
    raise_error(work);
  return Py_NewRef(Py_True);
}

// Calls wait. If it throws the failure of the operation, raises the error that the work keeps, so
// that every wait and exception() report the same object.
template <class Wait>
auto waiting(Work& work, Wait&& wait) {
  try {
    return wait();
  } catch (const NcclFailure&) {
    note_error(work);
    if (!work.error) throw;
    work.operation->release();
    work.waited = true;
    raise_error(work);
  }
}

PyObject* wait_without_limit(Work& work) {
  const bool on_host = work.communicator->library().memory() == Memory::kHost;
  if (on_host && work.waited && !work.error && !work.operation->captured())
    return Py_NewRef(Py_True);
  const CUstream current = work.current_stream();
  // Another thread may release the work meanwhile.
  const std::shared_ptr<AsyncOperation> operation = work.operation;
  waiting(work, [&] {
    const GilReleased released;
    Communicator& communicator = *work.communicator;
    TraceWait trace(TraceWait::What::kWork, communicator.shared_library(), communicator.device(),
                    current);
    trace.of(communicator, operation->sequence());
    operation->wait(current);
  });
  return finish_wait(work, on_host);
}

PyObject* wait(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (nargs != 0 || kwnames) [[unlikely]]
    return guarded([&] {
      static const Signature<1, 1, 0> signature("wait", {"timeout"});
      Signature<1, 1, 0>::Values values;
      PyObject* timeout = signature.parse(args, nargs, kwnames, values)[0];
      return py::handle(self).attr("_wait_at_most")(py::handle(timeout)).release().ptr();
    });
  return guarded([&] {
    Work& work = started(self);
    return explained(work.comm_stream, work.name.ptr(), [&] { return wait_without_limit(work); });
  });
}

PyObject* wait_for(PyObject* self, PyObject* seconds) {
  return guarded([&]() -> PyObject* {
    Work& work = started(self);
    const double limit = PyFloat_AsDouble(seconds);
    if (limit == -1 && PyErr_Occurred()) throw py::error_already_set();
    return explained(work.comm_stream, work.name.ptr(), [&] {
      const std::shared_ptr<AsyncOperation> operation = work.operation;
      const bool done = waiting(work, [&] {
        const GilReleased released;
        TraceWait trace(TraceWait::What::kWork);
        trace.of(*work.communicator, operation->sequence());
        return operation->wait_for(limit);
      });
      return done ? finish_wait(work, true) : Py_NewRef(Py_False);
    });
  });
}

PyObject* is_completed(PyObject* self, PyObject*) {
  return guarded([&] {
    Work& work = started(self);
    return explained(work.comm_stream, work.name.ptr(), [&] {
      if (!work.operation->done()) return Py_NewRef(Py_False);
      note_error(work);
      return Py_NewRef(Py_True);
    });
  });
}

PyObject* exception(PyObject* self, PyObject*) {
  return guarded([&] {
    Work& work = started(self);
    return explained(work.comm_stream, work.name.ptr(), [&] {
      if (work.operation->done()) note_error(work);
      return work.error ? py::object(work.error).release().ptr() : Py_NewRef(Py_None);
    });
  });
}

PyObject* result(PyObject* self, PyObject*) {
  return guarded([&] {
    const Work& work = started(self);
    if (PyList_Check(work.result.ptr())) return py::object(work.result).release().ptr();
    py::list only(1);
    only[0] = work.result;
    return only.release().ptr();
  });
}

PyObject* get_comm_stream(PyObject* self, void*) {
  return guarded([&] { return py::object(started(self).comm_stream).release().ptr(); });
}

PyObject* get_name(PyObject* self, void*) {
  return guarded([&] { return py::object(started(self).name).release().ptr(); });
}

PyObject* get_source(PyObject* self, void*) {
  return guarded([&] {
    const int source = started(self).source;
    return source < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(source);
  });
}

constexpr char kWaitDoc[] =
    "wait($self, timeout=None)\n--\n\n"
    "See torch.distributed.Work.wait. On CPUs, or with a timeout, it blocks the caller.";
constexpr char kIsCompletedDoc[] =
    "is_completed($self)\n--\n\n"
    "See torch.distributed.Work.is_completed. True as well if the operation has failed.";
constexpr char kExceptionDoc[] =
    "exception($self)\n--\n\n"
    "See torch.distributed.Work.exception. A DistBackendError, or None.";
constexpr char kResultDoc[] =
    "result($self)\n--\n\n"
    "See torch.distributed.Work.result. Does not wait.";

}  // namespace

void bind_work(py::module_& m) {
  static PyMethodDef methods[] = {
      fast_method("wait", &wait, kWaitDoc),
      {"_wait_for", &wait_for, METH_O,
       "_wait_for($self, seconds, /)\n--\n\n"
       "Block the caller until the operation is done or the time is over. Returns whether it is "
       "done."},
      fast_method("is_completed", &is_completed, kIsCompletedDoc),
      fast_method("exception", &exception, kExceptionDoc),
      fast_method("result", &result, kResultDoc),
      {}};
  static PyGetSetDef properties[] = {
      {"_comm_stream", &get_comm_stream, nullptr,
       "The CommStream that the operation was issued on.", nullptr},
      {"_name", &get_name, nullptr, "The name of the operation.", nullptr},
      {"_source", &get_source, nullptr, "The rank that the operation receives from, or None.",
       nullptr},
      {}};
  static PyType_Slot slots[] = {{Py_tp_new, slot(&Native<Work>::create)},
                                {Py_tp_dealloc, slot(&Native<Work>::destroy)},
                                {Py_tp_traverse, slot(&Native<Work>::traverse)},
                                {Py_tp_clear, slot(&Native<Work>::clear)},
                                {Py_tp_methods, methods},
                                {Py_tp_getset, properties},
                                {Py_tp_doc, const_cast<char*>("An asynchronous operation.")},
                                {0, nullptr}};
  static PyType_Spec spec = {"pynccl._C.Work", sizeof(Native<Work>), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
  add_type(m, spec, "Work");
}

}  // namespace pynccl::python::mirror
