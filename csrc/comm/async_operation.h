// AsyncOperation and AsyncQueue: operations on a communication stream, each between two events,
// with the objects that they need kept alive until they are done.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>

#include "comm/event_pool.h"
#include "comm/stream.h"

namespace pynccl {

// What an AsyncQueue issues between two events. In an open group it is issued at the end of the
// group; before that, and where the group fails, waiting for it throws std::invalid_argument.
class AsyncOperation {
 public:
  // The capture that an operation is captured in, which lasts as long as the stream takes part.
  struct Capture {
    std::shared_ptr<Stream> stream;  // of the operation
    cuuint64_t id;
  };

  // held is kept alive until release(). A captured operation can be waited for within the capture,
  // where its event is valid; it has no state of its own, since it runs with every launch of the
  // graph. capture: null if it is not captured.
  AsyncOperation(PooledEvent done, std::shared_ptr<void> held, int device,
                 std::unique_ptr<const Capture> capture);
  AsyncOperation(const AsyncOperation&) = delete;
  AsyncOperation& operator=(const AsyncOperation&) = delete;

  // Whether it has ended, with or without a failure. Throws std::invalid_argument if it was
  // captured.
  bool done() const;
  // Makes the stream wait: what is enqueued on it later runs after this operation. Blocks where the
  // stream is the calling thread itself. Throws std::invalid_argument if it was captured and the
  // capture has ended, or the stream takes part in another one.
  void wait(CUstream stream) const;
  // Blocks the caller; false where it takes longer. Throws NcclFailure where it has failed.
  bool wait_for(double seconds) const;
  // The number that the flight recorder has for it, or for the last one of several; 0: unknown.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  void set_sequence(std::uint64_t sequence) {
    sequence_.store(sequence, std::memory_order_relaxed);
  }
  // Instead of AsyncQueue::end(): the group has failed.
  void drop();
  bool captured() const { return capture_ != nullptr; }
  // Releases the held objects. Only after a wait: until then the operation may use them.
  void release() { held_.reset(); }

 private:
  friend class AsyncQueue;
  enum class State { kDeferred, kIssued, kDropped };

  void check_issued() const;
  void check_state() const;
  void check_capture(CUstream stream) const;

  PooledEvent done_;
  std::shared_ptr<void> held_;
  int device_;
  std::unique_ptr<const Capture> capture_;
  std::atomic<State> state_ = State::kDeferred;
  std::atomic<std::uint64_t> sequence_ = 0;
};

// The operations on the communication stream of a communicator. One thread at a time calls it.
class AsyncQueue {
 public:
  AsyncQueue(std::shared_ptr<Library> library, std::shared_ptr<Stream> stream);

  const Library& library() const { return stream_->library(); }
  CUstream handle() const { return stream_->handle(); }

  // Makes handle() wait for the work on the current stream. The operation is what the caller then
  // enqueues on handle(), before end() or drop().
  std::shared_ptr<AsyncOperation> begin(CUstream current, std::shared_ptr<void> held);
  // The queue holds the operation too until it is done, so that dropping it without a wait frees
  // nothing that is in use.
  void end(std::shared_ptr<AsyncOperation> operation);

  // Releases what completed operations hold, for a caller that issues on the current stream without
  // begin(). Does nothing while that stream is captured: events cannot be queried then.
  void release_done(CUstream current);
  // Whether there are operations that were not complete at the last check.
  bool has_pending() const { return !pending_.empty(); }

  // The number, in the order of end(), of the oldest operation that is not done.
  std::optional<std::size_t> oldest();

 private:
  void remove_done();

  std::shared_ptr<Stream> stream_;
  std::shared_ptr<EventPool> events_;
  std::deque<std::shared_ptr<AsyncOperation>> pending_;
  std::size_t removed_ = 0;
};

}  // namespace pynccl
