#include "core/stream.h"

#include <mutex>
#include <set>

#include "core/deadlines.h"
#include "core/device.h"

namespace pynccl {
namespace {

// Calls the driver. Some drivers need a current context even for a call on a given stream or event:
// in a thread without one the call is repeated with the device as the current one.
template <class Call>
CUresult in_context(const Library& library, int device, Call&& call) {
  const CUresult result = call(library.driver());
  if (result != CUDA_ERROR_INVALID_CONTEXT) [[likely]]
    return result;
  const DeviceScope scope(library, device);
  return call(library.driver());
}

// For destructors.
template <class Call>
void in_context_nothrow(const Library& library, int device, Call&& call) noexcept {
  try {
    static_cast<void>(in_context(library, device, call));
  } catch (...) {  // the device cannot be made current
  }
}

std::mutex existing_mutex;
std::set<CUstream>& existing_streams() {
  static auto& streams = *new std::set<CUstream>;
  return streams;
}

// Calls the driver, and throws what has expired on the stream instead of the driver's error.
template <class Wait>
auto waiting(CUstream stream, Wait&& wait) {
  const std::int64_t began = precise_time();
  try {
    const auto result = wait();
    ExpiredStreams::check(stream, began);
    return result;
  } catch (const DriverFailure&) {
    ExpiredStreams::check(stream, began);
    throw;
  }
}

bool done(const Library& library, CUresult result, const char* function) {
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result != CUDA_SUCCESS) throw_driver(library, result, function, __FILE__, __LINE__);
  return true;
}

}  // namespace

// DRIVER_CHECK in a context of the device.
#define CHECK_IN_CONTEXT(function, args)                                                      \
  do {                                                                                        \
    const CUresult result_ = in_context(                                                      \
        *library_, device_, [&](const DriverTable& driver) { return driver.function args; }); \
    if (result_ != CUDA_SUCCESS) [[unlikely]]                                                 \
      throw_driver(*library_, result_, "cu" #function, __FILE__, __LINE__);                   \
  } while (false)

Stream::Stream(std::shared_ptr<Library> library, int device, int priority)
    : library_(std::move(library)) {
  const DeviceScope scope(*library_, device);
  device_ = scope.device();
  DRIVER_CHECK(*library_, StreamCreateWithPriority, (&stream_, CU_STREAM_NON_BLOCKING, priority));
  const std::lock_guard lock(existing_mutex);
  existing_streams().insert(stream_);
}

Stream::~Stream() {
  if (!stream_) return;
  forget();
  const auto call = [&](const DriverTable& driver) { return driver.StreamDestroy(stream_); };
  in_context_nothrow(*library_, device_, call);
}

CUstream Stream::handle() const {
  if (!stream_) throw std::invalid_argument("stream: it is closed");
  return stream_;
}

int Stream::priority() const {
  int priority = 0;
  CHECK_IN_CONTEXT(StreamGetPriority, (handle(), &priority));
  return priority;
}

CUstreamCaptureStatus Stream::capture_status() const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CHECK_IN_CONTEXT(StreamIsCapturing, (handle(), &status));
  return status;
}

void Stream::synchronize() const {
  waiting(handle(), [&] {
    CHECK_IN_CONTEXT(StreamSynchronize, (handle()));
    return true;
  });
}

bool Stream::query() const {
  const RelaxedMode relaxed(*library_);
  const CUstream stream = handle();
  return waiting(stream, [&] {
    const auto call = [&](const DriverTable& driver) { return driver.StreamQuery(stream); };
    return done(*library_, in_context(*library_, device_, call), "cuStreamQuery");
  });
}

void Stream::wait(const Event& event) const {
  CHECK_IN_CONTEXT(StreamWaitEvent, (handle(), event.handle(), 0));
}

void Stream::launch_host_function(CUhostFn function, void* data) const {
  CHECK_IN_CONTEXT(LaunchHostFunc, (handle(), function, data));
}

void Stream::close() {
  if (!stream_) return;
  const CUstream stream = stream_;
  forget();
  stream_ = nullptr;
  CHECK_IN_CONTEXT(StreamDestroy, (stream));
}

void Stream::forget() noexcept {
  const std::lock_guard lock(existing_mutex);
  existing_streams().erase(stream_);
  ExpiredStreams::forget(stream_);
}

void Stream::if_existing(CUstream stream, const std::function<void()>& function) {
  const std::lock_guard lock(existing_mutex);
  const bool is_default = reinterpret_cast<std::uintptr_t>(stream) <= kStreamPerThread;
  if (is_default || existing_streams().contains(stream)) function();
}

Event::Event(std::shared_ptr<Library> library, int device, bool timing)
    : library_(std::move(library)) {
  const DeviceScope scope(*library_, device);
  device_ = scope.device();
  DRIVER_CHECK(*library_, EventCreate,
               (&event_, timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
}

Event::~Event() {
  if (!event_) return;
  const auto call = [&](const DriverTable& driver) { return driver.EventDestroy(event_); };
  in_context_nothrow(*library_, device_, call);
}

CUevent Event::handle() const {
  if (!event_) throw std::invalid_argument("event: it is closed");
  return event_;
}

void Event::record(CUstream stream) const {
  recorded_on_.store(stream, std::memory_order_relaxed);
  CHECK_IN_CONTEXT(EventRecord, (handle(), stream));
}

void Event::synchronize() const {
  waiting(recorded_on_.load(std::memory_order_relaxed), [&] {
    CHECK_IN_CONTEXT(EventSynchronize, (handle()));
    return true;
  });
}

bool Event::query() const {
  const RelaxedMode relaxed(*library_);
  const CUevent event = handle();
  const auto call = [&](const DriverTable& driver) { return driver.EventQuery(event); };
  return done(*library_, in_context(*library_, device_, call), "cuEventQuery");
}

double Event::elapsed_seconds(const Event& end) const {
  float milliseconds = 0;
  CHECK_IN_CONTEXT(EventElapsedTime, (&milliseconds, handle(), end.handle()));
  return static_cast<double>(milliseconds) / 1e3;
}

void Event::close() {
  if (!event_) return;
  const CUevent event = event_;
  event_ = nullptr;
  CHECK_IN_CONTEXT(EventDestroy, (event));
}

}  // namespace pynccl
