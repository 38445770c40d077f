// Event: a marker in a stream. A new recording replaces its record. A wait refers to the record
// that the event had when the wait was called, as in CUDA.
#pragma once

#include <memory>
#include <mutex>

#include "hostnccl/base/handle.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

class Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  // stream: null for the calling thread. failure: that of the preceding work, if the stream does
  // not know it.
  void record(const Ref<Stream>& stream, SharedFailure failure = nullptr);
  // In a capture: each launch of the graph records the event (CU_EVENT_RECORD_EXTERNAL).
  static void record_external(const Ref<Event>& event, const Ref<Stream>& stream);
  std::shared_ptr<EventRecord> last_record() const;  // null if the event was never recorded
  bool timing() const { return timing_; }
  bool is_of_this_process() const { return generation_ == fork_generation(); }

 private:
  const bool timing_;
  const uint32_t generation_ = fork_generation();
  mutable std::mutex mutex_;
  std::shared_ptr<EventRecord> last_record_;
};

// Makes later work of the stream wait for the record (cuStreamWaitEvent), whose failure becomes a
// failure of the stream. With a null stream, the calling thread waits and the call throws the
// failure. A null record needs no wait.
void stream_wait(const Ref<Stream>& stream, const std::shared_ptr<EventRecord>& record);

}  // namespace hostnccl
