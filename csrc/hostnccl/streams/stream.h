// A stream: a queue of callbacks and the thread that runs them in order. The thread starts with the
// first callback. It ends when the stream has been destroyed and its queue is empty: as in CUDA,
// destroying a stream does not wait for its work.
//
// The default streams 0, 1 (legacy) and 2 (per thread) are not objects: they are the calling
// thread, which runs a callback immediately. No other stream must therefore synchronise with them
// implicitly, and every stream behaves like one created with CU_STREAM_NON_BLOCKING.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "abi/driver_types.h"
#include "hostnccl/base/delay.h"
#include "hostnccl/base/error.h"
#include "hostnccl/base/flag.h"
#include "hostnccl/base/handle.h"
#include "hostnccl/base/process.h"
#include "hostnccl/communicator/thread_waits.h"
#include "hostnccl/streams/device_error.h"

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

  static void enqueue(const Ref<Stream>& stream, Callback callback) {
    Prepared(stream, std::move(callback)).enqueue();
  }

  // A callback for which the stream's thread runs and the memory is allocated, so that enqueue()
  // cannot fail. The thread holds a reference to the stream until the queue is empty and no
  // callback is prepared.
  class Prepared {
   public:
    Prepared(const Ref<Stream>& stream, Callback callback);
    Prepared(Prepared&&) = default;
    ~Prepared();
    void enqueue() noexcept;  // once

   private:
    Ref<Stream> stream_;
    std::list<Callback> callback_;  // one; none once it is enqueued
  };

  void synchronize();  // waits for every callback enqueued before
  // Waits for every callback enqueued before on any stream, including destroyed ones. Throws
  // CUDA_ERROR_NOT_PERMITTED in a callback.
  static void synchronize_all();
  bool idle();   // every callback has finished
  void close();  // the handle is closed: the thread ends after the last callback

  void set_failure(const Error& error);
  // The first failure since the last take_failure(), or null. A caller that began to wait when
  // fewer were taken gets the last one that another caller has taken in the meantime.
  SharedFailure take_failure(uint32_t taken_before);
  uint32_t taken();
  // For records on the stream: the latest failure, if it was already reported when the record is
  // enqueued, and the failure that the record then has when the stream has reached it.
  SharedFailure reported_failure();
  SharedFailure failure_besides(const SharedFailure& reported);

  int priority() const { return priority_; }
  bool capturing() const { return capturing_.load(std::memory_order_acquire); }
  bool is_of_this_process() const { return generation_ == fork_generation(); }

 private:
  friend class Capture;

  void run();
  void prepare_thread() const;
  void add_prepared(const Ref<Stream>& self);  // starts the thread if there is none

  const int priority_;
  const uint32_t number_ = Delay::next_stream_number();
  const uint32_t generation_ = fork_generation();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Callback> queue_;
  size_t prepared_ = 0;  // callbacks that are not enqueued yet
  uint32_t enqueued_ = 0;
  Flag finished_;
  bool has_thread_ = false;
  std::shared_ptr<WaitingThread> worker_;  // of the last thread
  bool closed_ = false;
  std::atomic<bool> has_failed_{false};
  SharedFailure untold_;  // the first one since the last take_failure()
  SharedFailure last_taken_;
  uint32_t taken_ = 0;
  SharedFailure latest_;  // the first one that is not reported, or the last that is
  std::atomic<bool> capturing_{false};
  CapturePosition capture_position_;  // while capturing; guarded by the lock of capture.cpp
};

HandleTable<Stream>& streams();

inline bool is_calling_thread(abi::CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= abi::kStreamPerThread;
}

}  // namespace hostnccl
