// Stream and Event: owners of a CUstream and a CUevent of either provider. Every thread can call
// them, also one without a current device. Streams of torch and CuPy are plain cudaStream_t handles
// and do not use these classes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "nccl/library.h"

namespace pynccl {

class Event;

// The relaxed capture mode of this thread for the length of a scope. In another mode the query and
// the synchronization of a stream or event invalidate a global capture.
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

// Whether the stream is being captured into a graph. The stream's device must be current where it
// is a default stream.
bool is_capturing(const Library& library, CUstream stream);
// Throws the DriverFailure of a wait that a handler of a signal has ended.
[[noreturn]] void throw_interrupted(const char* function);

// The id of the capture that the stream takes part in; none if the capture was invalidated.
std::optional<cuuint64_t> capture_id(const Library& library, CUstream stream);

// Throws what the communicator, or the function, whose work has failed says of it; returns where it
// is not known.
void check_failed_work(const Library& library, const WorkFailure& failure);

class Stream {
 public:
  // priority: CUDA's, lower numbers first; 0 is the default, and a number that the device does not
  // have becomes the nearest one. device below 0: the current one.
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

  // Both throw NcclFailure where work on the stream has failed, or work that it waits for: see
  // comm/failed_streams.
  void synchronize() const;
  bool query() const;  // whether all enqueued work is done
  void wait(const Event& event) const;
  void launch_host_function(CUhostFn function, void* data) const;
  void close();  // enqueued work still runs

  // Whether any thread can use the stream now: it is the default stream, or one of this class. A
  // thread's own default stream is another one for each thread.
  static bool is_existing(CUstream stream);
  // Whether it is one of this class that was created after this coarse_time(): not what had the
  // same handle then.
  static bool was_created_after(CUstream stream, std::int64_t time);
  // Calls function if the stream is an existing one, which then exists until the function returns:
  // its destruction waits, and nothing else.
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
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  const Library& library() const { return *library_; }
  CUevent handle() const;  // throws std::invalid_argument when closed

  void record(CUstream stream) const;
  // On a stream that is captured: each launch of the graph records it.
  void record_in_graph(CUstream stream) const;
  // Both throw NcclFailure where the recorded work has failed.
  void synchronize() const;
  bool done() const;   // whether the recorded work is done
  bool query() const;  // the same; work that has failed is done
  // Makes the stream wait, and have the failure of the recorded work.
  void block(CUstream stream) const;
  double elapsed_seconds(const Event& end) const;  // both with timing, both recorded
  // The stream of the last record(), and its time where someone needs it, else 0.
  CUstream recorded_on() const { return recorded_on_.load(std::memory_order_relaxed); }
  std::int64_t recorded_at() const { return recorded_at_.load(std::memory_order_relaxed); }
  void close();

 private:
  bool is_done(CUevent event) const;
  void check_failed(const std::string& cause) const;

  std::shared_ptr<Library> library_;
  CUevent event_ = nullptr;
  int device_ = 0;
  mutable std::atomic<CUstream> recorded_on_ = nullptr;
  mutable std::atomic<std::int64_t> recorded_at_ = 0;  // nanoseconds of precise_time(); 0: unknown
};

}  // namespace pynccl
