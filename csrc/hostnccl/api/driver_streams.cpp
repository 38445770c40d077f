// The driver API's functions for streams and events.
#include "hostnccl/api/driver_api.h"

using namespace hostnccl;

namespace pynccl::abi {
namespace {

// For queries and synchronization, which cannot be captured.
void check_capture_allows_sync(const Ref<Stream>& stream) {
  Capture::check_not_capturing(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  Capture::check_unsafe_call();
}

// The record to query or wait for. Null if the event was never recorded.
std::shared_ptr<EventRecord> checked_record(const Ref<Event>& event) {
  const auto record = event->last_record();
  Capture::check_not_captured(record.get());
  Capture::check_unsafe_call();
  return record;
}

}  // namespace

extern "C" {

CUresult hostStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return driver_guarded([=] {
    non_null(stream);
    require((flags & ~CU_STREAM_NON_BLOCKING) == 0, CUDA_ERROR_INVALID_VALUE);
    Delay::read_seed();
    *stream = open_handle<CUstream>(std::make_unique<Stream>(priority));
  });
}

CUresult hostStreamGetPriority(CUstream stream, int* priority) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    *non_null(priority) = target ? target->priority() : Stream::kLeastPriority;
  });
}

CUresult hostStreamDestroy(CUstream stream) {
  return driver_guarded([=] {
    require(!is_calling_thread(stream), CUDA_ERROR_INVALID_HANDLE);
    const Ref<Stream> target = close_handle<Stream>(stream);
    Capture::on_stream_destroyed(target);
    if (target->is_of_this_process()) target->close();
  });
}

CUresult hostStreamSynchronize(CUstream stream) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    check_capture_allows_sync(target);
    if (!target) return;
    const uint32_t taken = target->taken();
    target->synchronize();
    check_no_failure(target->take_failure(taken));
  });
}

CUresult hostStreamQuery(CUstream stream) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    check_capture_allows_sync(target);
    if (!target) return;
    const uint32_t taken = target->taken();
    require(target->idle(), CUDA_ERROR_NOT_READY);
    check_no_failure(target->take_failure(taken));
  });
}

CUresult hostStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return driver_guarded([=] {
    require(flags == 0, CUDA_ERROR_INVALID_VALUE);
    const Ref<Stream> target = stream_of(stream);
    stream_wait(target, object_of<Event>(event)->last_record());
  });
}

CUresult hostLaunchHostFunc(CUstream stream, CUhostFn function, void* userData) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    require(function != nullptr, CUDA_ERROR_INVALID_VALUE);
    run_or_enqueue(target, [=] { run_function(function, userData); });
  });
}

CUresult hostEventCreate(CUevent* event, unsigned int flags) {
  return driver_guarded([=] {
    non_null(event);
    constexpr unsigned kBlockingSync = 1;  // CU_EVENT_BLOCKING_SYNC, as every wait works here
    require((flags & ~(CU_EVENT_DISABLE_TIMING | kBlockingSync)) == 0, CUDA_ERROR_INVALID_VALUE);
    const bool timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    *event = open_handle<CUevent>(std::make_unique<Event>(timing));
  });
}

CUresult hostEventDestroy(CUevent event) {
  return driver_guarded([=] { close_handle<Event>(event); });
}

CUresult hostEventRecord(CUevent event, CUstream stream) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    object_of<Event>(event)->record(target);
  });
}

CUresult hostEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    require((flags & ~CU_EVENT_RECORD_EXTERNAL) == 0, CUDA_ERROR_INVALID_VALUE);
    const Ref<Event> recorded = object_of<Event>(event);
    if ((flags & CU_EVENT_RECORD_EXTERNAL) != 0)
      Event::record_external(recorded, target);
    else
      recorded->record(target);
  });
}

CUresult hostEventQuery(CUevent event) {
  return driver_guarded([=] {
    const auto record = checked_record(object_of<Event>(event));
    if (record == nullptr) return;
    require(record->done(), CUDA_ERROR_NOT_READY);
    check_no_failure(record->failure());
  });
}

CUresult hostEventSynchronize(CUevent event) {
  return driver_guarded([=] {
    const auto record = checked_record(object_of<Event>(event));
    if (record == nullptr) return;
    record->wait();
    check_no_failure(record->failure());
  });
}

CUresult hostEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return driver_guarded([=] {
    non_null(milliseconds);
    const Ref<Event> first = object_of<Event>(start);
    const Ref<Event> second = object_of<Event>(end);
    const auto began = checked_record(first);
    const auto ended = checked_record(second);
    require(first->timing() && second->timing() && began && ended, CUDA_ERROR_INVALID_HANDLE);
    require(began->done() && ended->done(), CUDA_ERROR_NOT_READY);
    *milliseconds = std::chrono::duration<float, std::milli>(ended->time() - began->time()).count();
  });
}

}  // extern "C"

}  // namespace pynccl::abi
