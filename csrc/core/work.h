// Asynchronous operations: a communication stream, between two events, and what they need held
// until they are done.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "core/event_pool.h"
#include "core/stream.h"

namespace pynccl {

// What was issued between begin() and end() of a WorkQueue.
class Work {
 public:
  // held is kept alive until somebody has waited. Work that was captured into a graph can be waited
  // for within the capture; whether it is done cannot be asked, for that is a matter of launches.
  Work(PooledEvent done, std::shared_ptr<void> held, int device, bool captured);
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  bool done() const;  // throws std::invalid_argument if it was captured
  // What is enqueued on the stream from now on comes after this work. Where the stream is the
  // calling thread itself, that is to block.
  void wait(CUstream stream) const;
  // Blocks the caller; false when it took longer.
  bool wait_for(double seconds) const;
  // Lets go of what is held. Only after a wait: until then the operation may still use it.
  void release() { held_.reset(); }

 private:
  PooledEvent done_;
  std::shared_ptr<void> held_;
  int device_;
  bool captured_;
};

// The communication stream of a communicator. Calls come from one thread at a time.
class WorkQueue {
 public:
  WorkQueue(std::shared_ptr<Library> library, std::shared_ptr<Stream> stream);

  const Library& library() const { return stream_->library(); }
  CUstream handle() const { return stream_->handle(); }

  // What is issued on handle() from now on comes after all that is on the current stream.
  void begin(CUstream current);
  // The work since begin(). It is held here as well until it is done: whoever drops it without
  // waiting frees nothing that is in use.
  std::shared_ptr<Work> end(std::shared_ptr<void> held);

  // Releases what is held by work that is done, for a caller that issues on the current stream
  // without begin(). Does nothing where that stream is being captured: events cannot be asked then.
  void release_done(CUstream current);
  // Whether there is work that was not known to be done at the last look.
  bool has_pending() const { return !pending_.empty(); }

  // The number, in the order of end(), of the oldest work that is not done.
  std::optional<std::size_t> oldest();

 private:
  void forget_done();
  bool is_capturing(CUstream current) const;

  std::shared_ptr<Stream> stream_;
  std::shared_ptr<EventPool> events_;
  std::deque<std::shared_ptr<Work>> pending_;
  std::size_t forgotten_ = 0;
  bool capturing_ = false;
};

}  // namespace pynccl
