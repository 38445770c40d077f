// The driver API's calls on streams and events.
#include "hostnccl/api/device_api.h"

using namespace hostnccl;

namespace pynccl::abi {
namespace {

// An operation that failed in the queue shows once, here; its communicator keeps the reason.
void report_failure(Stream& stream) { require(!stream.take_failure(), CUDA_ERROR_UNKNOWN); }

// Asking a stream or waiting for it is no work that a capture could record.
void refuse_in_capture(const Ref<Stream>& stream) {
  Capture::refuse(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  Capture::refuse_in_other_captures();
}

// The record to ask or to wait for; null if there is none.
std::shared_ptr<Event::Record> last_record(const Ref<Event>& event) {
  const auto record = event->last();
  Capture::refuse(record.get());
  Capture::refuse_in_other_captures();
  return record;
}

}  // namespace

extern "C" {

CUresult hostCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  return checked([=] {  // either may be null
    if (leastPriority != nullptr) *leastPriority = Stream::kLeastPriority;
    if (greatestPriority != nullptr) *greatestPriority = Stream::kGreatestPriority;
  });
}

CUresult hostStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return checked([=] {
    out(stream);
    require((flags & ~CU_STREAM_NON_BLOCKING) == 0, CUDA_ERROR_INVALID_VALUE);
    Delay::read_seed();
    const Ref<Stream> made = streams().open(std::make_unique<Stream>(priority));
    *stream = reinterpret_cast<CUstream>(made.slot());
  });
}

CUresult hostStreamGetPriority(CUstream stream, int* priority) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    *out(priority) = queue ? queue->priority() : Stream::kLeastPriority;
  });
}

CUresult hostStreamDestroy(CUstream stream) {
  return checked([=] {
    require(!is_calling_thread(stream), CUDA_ERROR_INVALID_HANDLE);
    const Ref<Stream> queue = streams().find(stream);
    require(queue && streams().close(queue), CUDA_ERROR_INVALID_HANDLE);
    Capture::leave(queue);
    if (queue->is_of_this_process()) queue->close();
  });
}

CUresult hostStreamSynchronize(CUstream stream) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    refuse_in_capture(queue);
    if (!queue) return;
    queue->synchronize();
    report_failure(*queue);
  });
}

CUresult hostStreamQuery(CUstream stream) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    refuse_in_capture(queue);
    if (!queue) return;
    require(queue->idle(), CUDA_ERROR_NOT_READY);
    report_failure(*queue);
  });
}

CUresult hostStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return checked([=] {
    require(flags == 0, CUDA_ERROR_INVALID_VALUE);
    const Ref<Stream> queue = find(stream);
    wait_for(queue, find(event)->last());
  });
}

CUresult hostLaunchHostFunc(CUstream stream, CUhostFn function, void* userData) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    require(function != nullptr, CUDA_ERROR_INVALID_VALUE);
    run_or_enqueue(queue, [=] { function(userData); });
  });
}

CUresult hostEventCreate(CUevent* event, unsigned int flags) {
  return checked([=] {
    out(event);
    const unsigned known = CU_EVENT_DISABLE_TIMING | 1u;  // 1: blocking synchronisation, as always
    require((flags & ~known) == 0, CUDA_ERROR_INVALID_VALUE);
    auto made = std::make_unique<Event>((flags & CU_EVENT_DISABLE_TIMING) == 0);
    *event = reinterpret_cast<CUevent>(events().open(std::move(made)).slot());
  });
}

CUresult hostEventDestroy(CUevent event) {
  return checked([=] {
    const Ref<Event> closed = events().find(event);
    require(closed && events().close(closed), CUDA_ERROR_INVALID_HANDLE);
  });
}

CUresult hostEventRecord(CUevent event, CUstream stream) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    find(event)->record(queue);
  });
}

CUresult hostEventQuery(CUevent event) {
  return checked([=] {
    const auto record = last_record(find(event));
    require(record == nullptr || record->done(), CUDA_ERROR_NOT_READY);
  });
}

CUresult hostEventSynchronize(CUevent event) {
  return checked([=] {
    if (const auto record = last_record(find(event))) record->wait();
  });
}

CUresult hostEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return checked([=] {
    out(milliseconds);
    const Ref<Event> from = find(start);
    const Ref<Event> to = find(end);
    const auto began = last_record(from);
    const auto ended = last_record(to);
    require(from->timing() && to->timing() && began && ended, CUDA_ERROR_INVALID_HANDLE);
    require(began->done() && ended->done(), CUDA_ERROR_NOT_READY);
    *milliseconds = std::chrono::duration<float, std::milli>(ended->time() - began->time()).count();
  });
}

}  // extern "C"

}  // namespace pynccl::abi
