// AsyncOperation and AsyncQueue: operations on a communication stream, each between two events. The
// objects that an operation needs stay alive until it is done.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>

#include "comm/stream.h"

namespace pynccl {

// An operation that an AsyncQueue issues between two events. In an open group, it is issued at the
// end of the group. Until then, and if the group fails, waiting for it throws
// std::invalid_argument.
class AsyncOperation {
 public:
  // The capture that recorded an operation. It is in progress as long as the stream takes part.
  struct Capture {
    std::shared_ptr<Stream> stream;  // the stream of the operation
    cuuint64_t id;
  };

  // held stays alive until release(). capture: null unless captured. A captured operation can only
  // be waited for within its capture, where its event is valid. It has no state of its own, because
  // it runs at every launch of the graph.
  AsyncOperation(PooledEvent done, std::shared_ptr<void> held, int device,
                 std::unique_ptr<const Capture> capture);

  // Whether it has completed or failed. Throws std::invalid_argument if it was captured.
  bool done() const;
  // Makes later work on the stream wait for this operation. Blocks if the stream is the calling
  // thread itself. Throws std::invalid_argument if the operation was captured, and its capture has
  // ended or the stream takes part in another one.
  void wait(CUstream stream) const;
  // Blocks the caller. Returns false after the given seconds. Throws NcclFailure if it failed.
  bool wait_for(double seconds) const;
  // Its sequence number in the flight recorder, or that of the last of several; 0: unknown.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  void set_sequence(std::uint64_t sequence) {
    sequence_.store(sequence, std::memory_order_relaxed);
  }
  // Called instead of AsyncQueue::end() if the group failed.
  void drop();
  bool captured() const { return capture_ != nullptr; }
  // Releases the held objects. Call it only after a wait: until then the operation may use them.
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

// The operations on a communicator's communication stream. Not thread-safe.
class AsyncQueue {
 public:
  AsyncQueue(std::shared_ptr<Library> library, std::shared_ptr<Stream> stream);

  const Library& library() const { return stream_->library(); }
  CUstream handle() const { return stream_->handle(); }

  // Makes handle() wait for the work on the current stream. The caller then enqueues the operation
  // on handle() and calls end() or drop().
  std::shared_ptr<AsyncOperation> begin(CUstream current, std::shared_ptr<void> held);
  // The queue shares ownership of the operation until it is done, so that dropping it without a
  // wait frees nothing that is in use.
  void end(std::shared_ptr<AsyncOperation> operation);

  // Releases the objects held by completed operations, for callers that issue on the current stream
  // without begin(). Does nothing during a capture of that stream, when events cannot be queried.
  void release_done(CUstream current);
  // Whether any operation was incomplete at the last check.
  bool has_pending() const { return !pending_.empty(); }

  // The index, in the order of end(), of the oldest operation that is not done.
  std::optional<std::size_t> oldest();

 private:
  void remove_done();

  std::shared_ptr<Stream> stream_;
  std::shared_ptr<EventPool> events_;
  std::deque<std::shared_ptr<AsyncOperation>> pending_;
  std::size_t removed_ = 0;
};

}  // namespace pynccl
