// Shared by the fast functions: whether the fast path applies, checks, and the call to NCCL.
#pragma once

#include <stdexcept>

#include "nccl/library.h"
#include "python/call/gil.h"
#include "python/comm/group.h"
#include "python/mirror/comm_stream.h"
#include "python/mirror/fast_function.h"
#include "python/mirror/process_group.h"

namespace pynccl::python::mirror {

// The group of an argument if its operations are issued immediately, otherwise nullptr.
inline ProcessGroup* direct_group(PyObject* argument) {
  ProcessGroup* group = ProcessGroup::given(argument);
  if (!group || !group->batch.is_none() || Group::active()) [[unlikely]]
    return nullptr;
  return group;
}

// Runs the checks of a body. Returns false if they fail or the communication stream cannot be
// created; the Python function then repeats them and raises the right exception. Other exceptions
// (std::bad_alloc, KeyboardInterrupt) propagate.
template <class Checks>
bool passes(Checks&& checks) {
  try {
    if (checks()) [[likely]]
      return true;
  } catch (const py::builtin_exception&) {
  } catch (const std::invalid_argument&) {
  } catch (const NcclFailure&) {
  } catch (const DriverFailure&) {
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_ValueError) &&
        !error.matches(PyExc_BufferError) && !error.matches(PyExc_OverflowError))
      throw;
  }
  PyErr_Clear();
  return false;
}

// Issues a synchronous operation: calls send() without the GIL, which calls NCCL on the stream.
template <class Send>
PyObject* issue_now(const CommStreamRef& ref, PyObject* kind, cudaStream_t stream, Send&& send) {
  const py::object comm_stream = ref.object;  // another thread may destroy the group meanwhile
  return issued(comm_stream, kind, [&] {
    ref.comm_stream->release_done(reinterpret_cast<CUstream>(stream));
    const GilReleased released;
    send();
    return Py_NewRef(Py_None);
  });
}

// Issues an asynchronous operation on the communication stream of the work's CommStream.
template <class Send>
PyObject* issue_async(CommStream& part, Work&& work, py::object held, Send&& send) {
  const py::object comm_stream = work.comm_stream;
  const py::object kind = work.name;
  return issued(comm_stream, kind.ptr(), [&] {
    return part.start(std::move(work), std::move(held), [&](CUstream) {
      const GilReleased released;
      send();
    });
  });
}

}  // namespace pynccl::python::mirror
