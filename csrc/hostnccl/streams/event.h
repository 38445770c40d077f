// An event: a marker in a stream. Recording it again replaces its record; a wait refers to the
// record that the event had when the wait was called, as in CUDA.
#pragma once

#include <memory>
#include <mutex>

#include "hostnccl/base/handle.h"
#include "hostnccl/streams/event_record.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

class Event {
 public:
  using Record = EventRecord;

  explicit Event(bool timing) : timing_(timing) {}

  // stream: null for the calling thread. failure: of the preceding work, if it is unknown to the
  // stream.
  void record(const Ref<Stream>& stream, SharedFailure failure = nullptr);
  // In a capture, each launch of the graph records the event (CU_EVENT_RECORD_EXTERNAL).
  static void record_external(const Ref<Event>& event, const Ref<Stream>& stream);
  std::shared_ptr<Record> last_record() const;  // null if the event was never recorded
  bool timing() const { return timing_; }
  bool is_of_this_process() const { return generation_ == fork_generation(); }

 private:
  const bool timing_;
  const uint32_t generation_ = fork_generation();
  mutable std::mutex mutex_;
  std::shared_ptr<Record> last_record_;
};

// Makes work enqueued on the stream from now on wait for the record (cuStreamWaitEvent), whose
// failure becomes one of the stream. A null stream, the calling thread, waits here and throws the
// failure; a null record needs no wait.
void stream_wait(const Ref<Stream>& stream, const std::shared_ptr<Event::Record>& record);

HandleTable<Event>& events();

}  // namespace hostnccl
