// EventRecord: one recording of an event.
#pragma once

#include <optional>
#include <utility>

#include "hostnccl/base/flag.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

// Done when its stream has reached it. It then has the failure of the
// work before it. A record made in a capture holds the position in the capture instead and is
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
  void throw_failure() const {                               // as an Error, if there is one
    if (failure_) throw Error(failure_->error);
  }
  Clock::time_point time() const { return time_; }

 private:
  const std::optional<CapturePosition> position_;
  Flag done_;
  SharedFailure failure_;
  Clock::time_point time_;
};

}  // namespace hostnccl
