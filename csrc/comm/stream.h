// Stream, Event and EventPool: own a CUstream and CUevents of either provider. Any thread can call
// them, even one without a current device. Streams of torch and CuPy are plain cudaStream_t handles
// and do not use these classes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "nccl/library.h"

namespace pynccl {

class Event;

// The scope of the relaxed capture mode on this thread. In any other mode, querying or
// synchronizing a stream or event would invalidate a global capture.
class RelaxedMode {
 public:
  explicit RelaxedMode(const Library& library) : library_(library) { exchange(); }
  ~RelaxedMode() { exchange(); }
  RelaxedMode(const RelaxedMode&) = delete;
  RelaxedMode& operator=(const RelaxedMode&) = delete;

 private:
  void exchange() { library_.driver().ThreadExchangeStreamCaptureMode(&mode_); }

  const Library& library_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Whether the stream is being captured. For a default stream, its device must be current.
bool is_capturing(const Library& library, CUstream stream);
// Throws the DriverFailure of a wait that a signal handler ended.
[[noreturn]] void throw_interrupted(const char* function);

// The id of the capture that the stream takes part in; none if the capture was invalidated.
std::optional<cuuint64_t> capture_id(const Library& library, CUstream stream);

// Throws the failure of the communicator or user function whose work failed. Returns if that is
// unknown.
void check_failed_work(const Library& library, const WorkFailure& failure);

class Stream {
 public:
  // priority: as in CUDA, where lower numbers run first and 0 is the default. An unsupported number
  // is clamped. A negative device is the current one.
  Stream(std::shared_ptr<Library> library, int device, int priority);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Library& library() const { return *library_; }
  const std::shared_ptr<Library>& shared_library() const { return library_; }
  int device() const { return device_; }
  CUstream handle() const;  // throws std::invalid_argument when closed

  int priority() const;
  CUstreamCaptureStatus capture_status() const;

  // Both throw NcclFailure if work on the stream, or work that it waits for, has failed: see
  // comm/failed_streams.
  void synchronize() const;
  bool query() const;  // whether all enqueued work is done
  void wait(const Event& event) const;
  void launch_host_function(CUhostFn function, void* data) const;
  void close();  // enqueued work still runs

  // Whether the handle is known to be valid on any thread: a default stream or an open Stream. The
  // per-thread default stream is not, because it differs between threads.
  static bool is_existing(CUstream stream);
  // Whether the handle belongs to a Stream created after this coarse_time(), not to an earlier
  // stream with the same handle.
  static bool was_created_after(CUstream stream, std::int64_t time);
  // Calls function if the stream exists. Its destruction waits until the function returns.
  static void if_existing(CUstream stream, const std::function<void()>& function);

 private:
  bool is_done(CUstream stream) const;
  void forget() noexcept;

  std::shared_ptr<Library> library_;
  CUstream stream_ = nullptr;
  int device_ = 0;
};

class Event {
 public:
  Event(std::shared_ptr<Library> library, int device, bool timing);
  ~Event();

  const Library& library() const { return *library_; }
  CUevent handle() const;  // throws std::invalid_argument when closed

  void record(CUstream stream) const;
  // On a captured stream: each launch of the graph records the event.
  void record_in_graph(CUstream stream) const;
  // Both throw NcclFailure if the recorded work has failed.
  void synchronize() const;
  bool done() const;   // whether the recorded work is done
  bool query() const;  // the same, but returns true for failed work
  // Makes the stream wait for the event. Waits for the stream then throw failures of the recorded
  // work.
  void block(CUstream stream) const;
  // Both events need a record(). Throws std::invalid_argument if one was created without timing.
  double elapsed_seconds(const Event& end) const;
  // The stream and the time of the last record(). The time is 0 unless it is needed.
  CUstream recorded_on() const { return recorded_on_.load(std::memory_order_relaxed); }
  std::int64_t recorded_at() const { return recorded_at_.load(std::memory_order_relaxed); }
  void close();

 private:
  bool is_done(CUevent event) const;
  void check_failed(const std::string& cause) const;

  std::shared_ptr<Library> library_;
  CUevent event_ = nullptr;
  int device_ = 0;
  bool timing_;
  mutable std::atomic<CUstream> recorded_on_ = nullptr;
  mutable std::atomic<std::int64_t> recorded_at_ = 0;  // nanoseconds of precise_time(); 0: unknown
};

// EventPool: reuses CUDA events. An operation takes one and returns it when it is done.
class EventPool;

// An event of a pool, which the destructor returns to it. It keeps the pool alive.
class PooledEvent {
 public:
  PooledEvent(std::shared_ptr<EventPool> pool, std::unique_ptr<Event> event)
      : pool_(std::move(pool)), event_(std::move(event)) {}
  PooledEvent(PooledEvent&&) = default;
  PooledEvent& operator=(PooledEvent&&) = delete;
  ~PooledEvent();

  const Event& operator*() const { return *event_; }
  const Event* operator->() const { return event_.get(); }

 private:
  std::shared_ptr<EventPool> pool_;
  std::unique_ptr<Event> event_;
};

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  EventPool(std::shared_ptr<Library> library, int device, bool timing = false);

  // The event may have been recorded before.
  PooledEvent acquire();
  void release(std::unique_ptr<Event> event) noexcept;

 private:
  std::shared_ptr<Library> library_;
  int device_;
  bool timing_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> free_;
};

}  // namespace pynccl
