// CommStream: a communicator and the stream of its asynchronous operations. The Python class
// CommStream inherits from it. Every operation of the mirror passes issued() in this file.
#pragma once

#include <pybind11/pybind11.h>

#include <mutex>
#include <optional>

#include "comm/async_operation.h"
#include "comm/communicator.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/comm/group.h"
#include "python/mirror/work.h"
#include "watch/trace.h"

namespace pynccl::python::mirror {

class CommStream {
 public:
  CommStream(std::shared_ptr<Communicator> communicator, int priority)
      : communicator_(std::move(communicator)), priority_(priority) {}

  Communicator& communicator() const { return *communicator_; }
  const std::shared_ptr<Communicator>& shared_communicator() const { return communicator_; }

  // Enqueues an operation on the communication stream, after the work on the current stream; in an
  // open group, when the group ends. enqueue is called with the stream and must return with the GIL
  // held, as it was called. held is kept alive until the work was waited for or is done.
  template <class Enqueue>
  PyObject* start(Work&& work, py::object held, Enqueue&& enqueue) {
    std::unique_lock order = lock_order();
    AsyncQueue& queue = this->queue();
    work.operation = queue.begin(work.current_stream(), hold(std::move(held)));
    if (work.operation->captured()) [[unlikely]]
      communicator_->deadlines().mark_captured();
    enqueue(queue.handle());
    if (Group* group = Group::active()) [[unlikely]]
      end_with(*group, work);
    else
      queue.end(work.operation);
    if (Trace::timed()) [[unlikely]]
      work.operation->set_sequence(communicator_->deadlines().recorder().last());
    order.unlock();
    return make_work(std::move(work));
  }

  // The communication stream and its queue, created on first use.
  const std::shared_ptr<Stream>& stream();
  AsyncQueue& queue();

  // Releases the tensors of completed asynchronous operations before a synchronous call on the
  // current stream. For an asynchronous call, start() does it.
  void release_done(CUstream current) {
    if (has_pending()) [[unlikely]]
      queue_->release_done(current);
  }
  // Whether there were unfinished asynchronous operations at the last check.
  bool has_pending() const { return queue_ && queue_->has_pending(); }

  // The number of the oldest asynchronous operation that is not done.
  std::optional<std::size_t> oldest() { return queue_ ? queue_->oldest() : std::nullopt; }

 private:
  // A thread waiting for the lock must not hold the GIL, which the owner of the lock may need.
  std::unique_lock<std::mutex> lock_order() {
    std::unique_lock order(order_, std::try_to_lock);
    if (!order) [[unlikely]] {
      const GilReleased released;
      order.lock();
    }
    return order;
  }
  void end_with(Group& group, const Work& work);

  std::shared_ptr<Communicator> communicator_;
  int priority_;
  std::mutex order_;
  std::shared_ptr<Stream> stream_;
  std::optional<AsyncQueue> queue_;
};

// A reference to a CommStream: the Python object and its C++ part.
struct CommStreamRef {
  py::object object;
  CommStream* comm_stream = nullptr;

  CommStreamRef() = default;
  explicit CommStreamRef(py::object given)
      : object(std::move(given)), comm_stream(&py::cast<CommStream&>(object)) {}

  explicit operator bool() const { return comm_stream != nullptr; }
};

// A range of torch's profiler around an operation.
class ProfilerRange {
 public:
  // Whether operations have ranges. This load is the only cost if they have none.
  static bool enabled() { return factory_ != nullptr; }
  // factory(name) creates a context manager; None: no ranges.
  static void set_factory(const py::object& factory);

  explicit ProfilerRange(PyObject* kind);
  ~ProfilerRange();  // preserves the current Python exception
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  inline static PyObject* factory_ = nullptr;

  py::object range_;
};

// Issues an operation of the mirror: synchronous or asynchronous, from Python or from a fast
// function, single or batched. body calls NCCL and returns a new reference to the work or None.
template <class Body>
PyObject* issued(const py::object& comm_stream, PyObject* kind, Body&& body) {
  if (!ProfilerRange::enabled()) [[likely]]
    return explained(comm_stream, kind, body);
  const ProfilerRange range(kind);
  return explained(comm_stream, kind, body);
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
