// A stream: a queue of work with a thread of its own, which starts with the first work and ends
// when the stream has been destroyed and its queue is empty, as CUDA's do: destroying does not
// wait. The streams 0, 1 and 2 are no objects: they are the calling thread itself.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "abi/driver_types.h"
#include "hostnccl/counter.h"
#include "hostnccl/handle.h"
#include "hostnccl/process.h"

namespace hostnccl {

class Stream {
 public:
  using Work = std::function<void()>;

  // self keeps the stream alive until the queue is empty.
  static void enqueue(const Ref<Stream>& self, Work work);

  void synchronize();  // with all that was enqueued before
  bool idle();
  void close();  // the handle is gone: the thread ends after the last work

  // An operation in the queue has failed: told once, by the next synchronize or query.
  void note_failure() { failed_.store(true, std::memory_order_release); }
  bool take_failure() { return failed_.exchange(false, std::memory_order_acq_rel); }

  bool is_of_this_process() const { return generation_ == fork_generation(); }

 private:
  void run();

  const uint32_t generation_ = fork_generation();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  uint32_t enqueued_ = 0;
  Counter finished_;
  bool has_thread_ = false;
  bool closed_ = false;
  std::atomic<bool> failed_{false};
};

HandleTable<Stream>& streams();

inline bool is_calling_thread(abi::CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= abi::kStreamPerThread;
}

}  // namespace hostnccl
