// Streams and events.
#include <atomic>
#include <mutex>

#include "driver/control.h"
#include "driver/driver.h"
#include "driver/settings.h"

namespace cuda_double::driver {
namespace {

// Querying or waiting for an event works on any device, but requires a context.
template <class Body>
CUresult on_event(CUevent handle, Body&& body) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const EventRef event = find_event(handle);
  return event ? body(event->event) : CUDA_ERROR_INVALID_HANDLE;
}

// Of cuda_double_block_queries().
std::atomic<bool> queries_block{false};
std::atomic<int> blocked_queries{0};

void wait_while_blocked() {
  if (!queries_block.load(std::memory_order_relaxed)) return;
  ++blocked_queries;
  wait_while([] { return queries_block.load(); });
  --blocked_queries;
}

// The engine's stream reports a failed NCCL operation once. On a GPU its kernel ends when the
// communicator is aborted, and the stream has no error.
CUresult without_failed_operations(CUresult result) {
  return result == CUDA_ERROR_UNKNOWN ? CUDA_SUCCESS : result;
}

}  // namespace

}  // namespace cuda_double::driver

int cuda_double_block_queries(int block) {
  cuda_double::driver::queries_block = block != 0;
  return cuda_double::driver::blocked_queries;
}

namespace cuda_double::driver {

CUresult StreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  if (stream == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const auto kind =
      flags & CU_STREAM_NON_BLOCKING ? Stream::Kind::NonBlocking : Stream::Kind::Blocking;
  const StreamRef made = current()->make_stream(kind, priority);
  publish(made);
  *stream = handle_of(*made);
  const double seconds = setting("CUDA_DOUBLE_STREAM_SECONDS");
  return seconds > 0 ? keep_busy(*made, seconds) : CUDA_SUCCESS;
}

CUresult StreamCreate(CUstream* stream, unsigned int flags) {
  return StreamCreateWithPriority(stream, flags, 0);
}

CUresult StreamGetPriority(CUstream handle, int* priority) {
  const auto [stream, result] = find_stream(handle);
  return stream ? engine().StreamGetPriority(stream->queue(), priority) : result;
}

CUresult StreamGetCtx(CUstream handle, CUcontext* context) {
  const auto [stream, result] = find_stream(handle);
  if (!stream) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = stream->context().handle();
  return CUDA_SUCCESS;
}

// Requires no context, like the driver.
CUresult StreamDestroy(CUstream handle) {
  return withdraw(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult StreamSynchronize(CUstream handle) {
  return on_stream(handle, [](Stream& s) {
    return without_failed_operations(engine().StreamSynchronize(s.queue()));
  });
}

CUresult StreamQuery(CUstream handle) {
  wait_while_blocked();
  const auto [stream, result] = find_stream(handle);
  return stream ? without_failed_operations(stream->query()) : result;
}

// The event may belong to another device.
CUresult StreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
  const EventRef waited = find_event(event);
  if (!waited) return CUDA_ERROR_INVALID_HANDLE;
  return on_stream(
      handle, [&](Stream& s) { return engine().StreamWaitEvent(s.queue(), waited->event, flags); });
}

// CUDA calls the functions of all streams one after another, as seen on an H100.
CUresult LaunchHostFunc(CUstream handle, CUhostFn function, void* userData) {
  static std::mutex calls;
  return on_stream(handle, [&](Stream& s) {
    return launch(s, [function, userData] {
      const std::lock_guard lock(calls);
      function(userData);
    });
  });
}

CUresult EventCreate(CUevent* event, unsigned int flags) {
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  CUevent made = nullptr;
  if (const CUresult result = engine().EventCreate(&made, flags); result != CUDA_SUCCESS)
    return result;
  *event = publish(EventRef(new Event{*current(), made}, [](Event* gone) {
    engine().EventDestroy(gone->event);
    delete gone;
  }));
  return CUDA_SUCCESS;
}

CUresult EventDestroy(CUevent event) {
  return withdraw(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// The stream must belong to the event's device.
CUresult EventRecordWithFlags(CUevent handle, CUstream stream, unsigned int flags) {
  const EventRef event = find_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  return on_stream(stream, [&](Stream& s) {
    if (&s.context() != &event->context) return CUDA_ERROR_INVALID_HANDLE;
    return engine().EventRecordWithFlags(event->event, s.queue(), flags);
  });
}

CUresult EventRecord(CUevent event, CUstream stream) {
  return EventRecordWithFlags(event, stream, 0);
}

CUresult EventQuery(CUevent event) {
  wait_while_blocked();
  return on_event(event,
                  [](CUevent e) { return without_failed_operations(engine().EventQuery(e)); });
}

CUresult EventSynchronize(CUevent event) {
  return on_event(
      event, [](CUevent e) { return without_failed_operations(engine().EventSynchronize(e)); });
}

CUresult EventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const EventRef from = find_event(start), to = find_event(end);
  if (!from || !to || &from->context != &to->context) return CUDA_ERROR_INVALID_HANDLE;
  return engine().EventElapsedTime(milliseconds, from->event, to->event);
}

}  // namespace cuda_double::driver
