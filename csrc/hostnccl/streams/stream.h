// Stream: a queue of callbacks and the thread that runs them in order. The thread starts with the
// first callback. It ends when the stream was destroyed and the queue is empty: as in CUDA, the
// destruction of a stream does not wait for its work.
//
// The default streams 0, 1 (legacy) and 2 (per thread) are not objects, but the calling thread,
// which runs a callback immediately. Other streams therefore need not synchronize with them
// implicitly. Every stream behaves as if created with CU_STREAM_NON_BLOCKING.
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
#include "hostnccl/communicator/waits.h"
#include "hostnccl/streams/device_error.h"

namespace hostnccl {

class Capture;

// The position of a stream in a capture. The next node of the stream depends on the dependencies.
struct CapturePosition {
  std::shared_ptr<Capture> capture;
  std::vector<size_t> dependencies;  // indices of nodes, ascending
  size_t branch = 0;
};

// One recording of an event. It is done when its stream has reached it, and then has the failure of
// the preceding work. A record in a capture contains the position in the capture instead and is
// never done.
class EventRecord {
 public:
  EventRecord() = default;
  explicit EventRecord(CapturePosition position) : position_(std::move(position)) {}
  const std::optional<CapturePosition>& capture_position() const { return position_; }
  void complete(SharedFailure failure = nullptr) {
    failure_ = std::move(failure);
    time_ = Clock::now();
    done_.signal(1);
  }
  bool done() const { return done_.reached(1); }
  void wait() { sleep_in_process({&done_, 1}); }
  const SharedFailure& failure() const { return failure_; }  // once it is done
  void throw_failure() const {                               // if there is one
    if (failure_) throw Error(failure_->error);
  }
  Clock::time_point time() const { return time_; }

 private:
  const std::optional<CapturePosition> position_;
  Flag done_;
  SharedFailure failure_;
  Clock::time_point time_;
};

class Stream {
 public:
  using Callback = std::function<void()>;

  // The range of priorities, which have no effect. As in CUDA, a lower number is a higher priority.
  static constexpr int kLeastPriority = 0;
  static constexpr int kGreatestPriority = -5;

  explicit Stream(int priority = kLeastPriority);

  static void enqueue(const Ref<Stream>& stream, Callback callback) {
    Prepared(stream, std::move(callback)).enqueue();
  }

  // A callback whose memory is allocated and whose stream has a thread: enqueue() cannot fail. The
  // thread holds a reference to the stream while there are queued or prepared callbacks.
  class Prepared {
   public:
    Prepared(const Ref<Stream>& stream, Callback callback);
    Prepared(Prepared&&) = default;
    ~Prepared();
    void enqueue() noexcept;  // once

   private:
    Ref<Stream> stream_;
    std::list<Callback> callback_;  // one callback, until it is enqueued
  };

  // Waits for every callback enqueued before. Throws CUDA_ERROR_NOT_PERMITTED in a callback of the
  // stream.
  void synchronize();
  // Waits for every callback enqueued before on any stream, including destroyed ones. Throws
  // CUDA_ERROR_NOT_PERMITTED in a callback.
  static void synchronize_all();
  bool idle();   // every callback has finished
  void close();  // the handle is closed: the thread ends after the last callback

  void set_failure(const Error& error);
  // Returns the first failure since the last take_failure(), or null. If another caller has taken a
  // failure since taken() returned taken_before, this caller gets that one.
  SharedFailure take_failure(uint32_t taken_before);
  uint32_t taken();
  // For records on the stream. When a record is enqueued: the latest failure, if it was already
  // reported. When the stream reaches the record: the failure of the record, other than that one.
  SharedFailure reported_failure();
  SharedFailure failure_besides(const SharedFailure& reported);

  int priority() const { return priority_; }
  bool capturing() const { return capturing_.load(std::memory_order_acquire); }
  bool is_of_this_process() const { return generation_ == fork_generation(); }

 private:
  friend class Capture;

  void run();
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
  SharedFailure untaken_;  // the first one since the last take_failure()
  SharedFailure last_taken_;
  uint32_t taken_ = 0;
  SharedFailure latest_;  // the first unreported failure, else the last reported one
  std::atomic<bool> capturing_{false};
  CapturePosition capture_position_;  // while capturing; guarded by the lock of capture.cpp
};

inline bool is_calling_thread(abi::CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= abi::kStreamPerThread;
}

}  // namespace hostnccl
