// A stream: a queue of work with a thread of its own, which starts with the first work and ends
// when the stream has been destroyed and its queue is empty, as CUDA's do: destroying does not
// wait. The streams 0, 1 and 2 are no objects: they are the calling thread itself. No stream waits
// for that one by itself, as CUDA's streams without CU_STREAM_NON_BLOCKING do: the thread has done
// its work before it can enqueue any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "abi/driver_types.h"
#include "hostnccl/base/delay.h"
#include "hostnccl/base/flag.h"
#include "hostnccl/base/handle.h"
#include "hostnccl/base/process.h"

namespace hostnccl {

class Capture;

// Where a stream is in a capture: what it records next comes after these nodes.
struct Place {
  std::shared_ptr<Capture> capture;
  std::vector<size_t> after;
  size_t branch = 0;
};

class Stream {
 public:
  using Work = std::function<void()>;

  // The least and the greatest priority; lower numbers go first.
  static constexpr int kLeastPriority = 0;
  static constexpr int kGreatestPriority = -5;

  explicit Stream(int priority = kLeastPriority);

  // self keeps the stream alive until the queue is empty.
  static void enqueue(const Ref<Stream>& self, Work work);

  void synchronize();  // with all that was enqueued before
  bool idle();
  void close();  // the handle is gone: the thread ends after the last work

  // An operation in the queue has failed: told once, by the next synchronize or query.
  void note_failure() { failed_.store(true, std::memory_order_release); }
  bool take_failure() { return failed_.exchange(false, std::memory_order_acq_rel); }

  int priority() const { return priority_; }
  bool capturing() const { return capturing_.load(std::memory_order_acquire); }
  bool is_of_this_process() const { return generation_ == fork_generation(); }

 private:
  friend class Capture;

  void run();
  void prepare_thread() const;

  const int priority_;
  const uint32_t number_ = Delay::next_stream_number();
  const uint32_t generation_ = fork_generation();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  uint32_t enqueued_ = 0;
  Flag finished_;
  bool has_thread_ = false;
  bool closed_ = false;
  std::atomic<bool> failed_{false};
  std::atomic<bool> capturing_{false};
  Place place_;  // while capturing; under the lock of captures
};

HandleTable<Stream>& streams();

inline bool is_calling_thread(abi::CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= abi::kStreamPerThread;
}

}  // namespace hostnccl
