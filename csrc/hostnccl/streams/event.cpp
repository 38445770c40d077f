#include "hostnccl/streams/event.h"

#include <utility>

#include "hostnccl/streams/capture.h"
#include "hostnccl/streams/device_error.h"

namespace hostnccl {

void Event::record(const Ref<Stream>& stream, SharedFailure failure) {
  std::shared_ptr<EventRecord> record;
  if (stream && stream->capturing()) {
    record = Capture::record_event(stream);
  } else if (record = std::make_shared<EventRecord>(); stream) {
    Stream::enqueue(stream, [record, on = stream.get(), reported = stream->reported_failure()] {
      record->complete(on->failure_besides(reported));
    });
  } else {
    record->complete(std::move(failure));
  }
  const std::lock_guard lock(mutex_);
  last_record_ = std::move(record);
}

void Event::record_external(const Ref<Event>& event, const Ref<Stream>& stream) {
  require(stream && stream->capturing(), abi::CUDA_ERROR_INVALID_VALUE);
  Capture::add_node({stream},
                    [event](const SharedFailure& failure) { event->record({}, failure); });
}

std::shared_ptr<EventRecord> Event::last_record() const {
  const std::lock_guard lock(mutex_);
  return last_record_;
}

void stream_wait(const Ref<Stream>& stream, const std::shared_ptr<EventRecord>& record) {
  if (record == nullptr) return;
  if (record->capture_position()) {
    return Capture::wait_for_position(stream, *record->capture_position());
  }
  Capture::check_not_capturing(stream, abi::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  if (record->done() && !record->failure()) return;
  if (stream) {
    Stream::enqueue(stream, [record] {
      record->wait();
      record->throw_failure();
    });
  } else {
    record->wait();
    check_no_failure(record->failure());
  }
}

}  // namespace hostnccl
