// Contexts, streams and events of the double, each based on a stream or event of the engine.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "driver/engine.h"

namespace cuda_double {

inline constexpr int kMostDevices = 16;

class Context;

// A queue with CUDA's implicit order: work on the legacy default stream runs after all earlier work
// of the context's blocking streams, and before all their later work.
class Stream {
 public:
  enum class Kind { Legacy, Blocking, NonBlocking };

  Stream(Context& context, Kind kind, int priority);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Context& context() const { return context_; }
  Kind kind() const { return kind_; }
  CUstream queue() const { return queue_; }  // the engine's

  // Brackets every enqueue on queue().
  CUresult before_work();
  void after_work();
  // Whether its work is complete, and for the legacy stream that of the blocking streams. Enqueues
  // nothing: a stream without work is never busy.
  CUresult query();

 private:
  friend class Context;

  Context& context_;
  const Kind kind_;
  CUstream queue_ = nullptr;
  CUevent last_ = nullptr;      // the engine's, to order this queue and the legacy one
  uint64_t legacy_seen_ = 0;    // the legacy work that precedes this queue
  bool new_to_legacy_ = false;  // has work that the legacy stream has not waited for
};
using StreamRef = std::shared_ptr<Stream>;

// The primary context of a device.
class Context {
 public:
  explicit Context(int device) : device_(device) {}

  int device() const { return device_; }
  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }
  bool active() const { return retained_.load(); }
  void retain() { retained_.store(true); }

  StreamRef legacy();
  StreamRef per_thread();
  StreamRef make_stream(Stream::Kind kind, int priority);
  void remove(Stream* stream);
  std::vector<CUstream> queues();  // the engine's, of all streams
  // The engine's, after the work of streams that were destroyed before it was done.
  std::vector<std::shared_ptr<void>> work_of_destroyed();

 private:
  friend class Stream;

  const int device_;
  std::atomic<bool> retained_{false};
  std::mutex mutex_;  // of the streams and their order
  StreamRef legacy_;
  uint64_t legacy_work_ = 0;
  std::set<Stream*> streams_;
  std::vector<std::shared_ptr<void>> destroyed_;
};

struct Event {
  Context& context;
  CUevent event;  // the engine's
};
using EventRef = std::shared_ptr<Event>;

int device_count();
Context& context_of(int device);
Context* find_context(CUcontext handle);  // null if it is not a context
Context* current();                       // of this thread; null without one
void set_current(Context* context);

// The stream of a handle. 0, 1 and 2 are the default streams of the current context.
struct Found {
  StreamRef stream;
  CUresult result = CUDA_SUCCESS;
};
Found find_stream(CUstream handle);
bool capturing(const Stream& stream);
// Whether the engine's event is reached. A query by the double itself invalidates no capture.
bool is_reached(CUevent event);
CUresult launch(const Stream& stream, std::function<void()> function);  // runs it in stream order
CUresult keep_busy(const Stream& stream, double seconds);  // it does nothing for this time
CUresult hold(const Stream& stream, const int* released);  // nor until *released is not 0
CUstream handle_of(const Stream& stream);
void publish(const StreamRef& stream);
StreamRef withdraw(CUstream handle);

EventRef find_event(CUevent handle);
CUevent publish(const EventRef& event);
EventRef withdraw(CUevent handle);

// Access to a stream for enqueuing work.
template <class Body>
CUresult on_stream(CUstream handle, Body&& body) {
  const auto [stream, result] = find_stream(handle);
  if (!stream) return result;
  if (const CUresult refused = stream->before_work(); refused != CUDA_SUCCESS) return refused;
  const CUresult done = body(*stream);
  stream->after_work();
  return done;
}

}  // namespace cuda_double
