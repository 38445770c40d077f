// A stream: a queue of callbacks and the thread that runs them in order. The thread starts with the
// first callback. It ends when the stream has been destroyed and its queue is empty: as in CUDA,
// destroying a stream does not wait for its work.
//
// The default streams 0, 1 (legacy) and 2 (per thread) are no objects: they are the calling thread,
// which runs a callback at once. So there is nothing that another stream would have to synchronise
// with implicitly, and every stream behaves as one made with CU_STREAM_NON_BLOCKING.
#pragma once

#include <atomic>
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

// The position of a stream in a capture: the next node captured on the stream depends on these.
struct CapturePosition {
  std::shared_ptr<Capture> capture;
  std::vector<size_t> dependencies;  // indices of nodes, ascending
  size_t branch = 0;
};

class Stream {
 public:
  using Callback = std::function<void()>;

  // The range of priorities, as in CUDA: the lower number is the higher priority.
  static constexpr int kLeastPriority = 0;
  static constexpr int kGreatestPriority = -5;

  explicit Stream(int priority = kLeastPriority);

  // The thread holds a reference to the stream until the queue is empty.
  static void enqueue(const Ref<Stream>& self, Callback callback);

  void synchronize();  // waits for every callback enqueued before
  // Waits for every callback enqueued before on any stream, also on those that are destroyed.
  // Throws CUDA_ERROR_NOT_PERMITTED in a callback.
  static void synchronize_all();
  bool idle();   // every callback has finished
  void close();  // the handle is closed: the thread ends after the last callback

  // An operation on the stream failed. The next synchronize or query reports it, once.
  void set_failed() { failed_.store(true, std::memory_order_release); }
  bool take_failed() { return failed_.exchange(false, std::memory_order_acq_rel); }

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
  std::deque<Callback> queue_;
  uint32_t enqueued_ = 0;
  Flag finished_;
  bool has_thread_ = false;
  bool closed_ = false;
  std::atomic<bool> failed_{false};
  std::atomic<bool> capturing_{false};
  CapturePosition capture_position_;  // while capturing; guarded by the lock of capture.cpp
};

HandleTable<Stream>& streams();

inline bool is_calling_thread(abi::CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= abi::kStreamPerThread;
}

}  // namespace hostnccl
