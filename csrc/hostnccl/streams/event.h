// An event: the last place in a queue at which it was recorded. Whoever waits refers to the record
// that there was at the time of the call.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "hostnccl/base/flag.h"
#include "hostnccl/base/handle.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

class Event {
 public:
  // One recording; done once its queue has come to it. One in a capture is a place there, and never
  // done.
  class Record {
   public:
    Record() = default;
    explicit Record(Place place) : place_(std::move(place)) {}
    const std::optional<Place>& place() const { return place_; }
    void complete();
    bool done() const { return done_.reached(1); }
    void wait();
    Clock::time_point time() const { return time_; }

   private:
    const std::optional<Place> place_;
    Flag done_;
    Clock::time_point time_;
  };

  explicit Event(bool timing) : timing_(timing) {}

  void record(const Ref<Stream>& stream);  // none: the calling thread
  std::shared_ptr<Record> last() const;    // null if it was never recorded
  bool timing() const { return timing_; }
  bool is_of_this_process() const { return generation_ == fork_generation(); }

 private:
  const bool timing_;
  const uint32_t generation_ = fork_generation();
  mutable std::mutex mutex_;
  std::shared_ptr<Record> last_;
};

// Work enqueued on stream (none: the calling thread) from now on comes after the record.
void wait_for(const Ref<Stream>& stream, const std::shared_ptr<Event::Record>& record);

HandleTable<Event>& events();

}  // namespace hostnccl
