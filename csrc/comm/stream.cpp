#include "comm/stream.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "comm/failed_streams.h"
#include "comm/observer.h"
#include "nccl/clock.h"
#include "nccl/device.h"
#include "nccl/interrupt.h"
#include "nccl/library.h"

namespace pynccl {
namespace {

// Calls the driver. Some drivers need a current context even for a call on a given stream or event.
// In a thread without one, the call is repeated with the device made current.
template <class Call>
CUresult in_context(const Library& library, int device, Call&& call) {
  const CUresult result = call(library.driver());
  if (result != CUDA_ERROR_INVALID_CONTEXT) [[likely]]
    return result;
  const DeviceScope scope(library, device);
  return call(library.driver());
}

// in_context() for destructors.
template <class Call>
void in_context_nothrow(const Library& library, int device, Call&& call) noexcept {
  try {
    static_cast<void>(in_context(library, device, call));
  } catch (...) {  // the device cannot be made current
  }
}

// A Stream that has not been destroyed.
struct Existing {
  std::int64_t created;  // a coarse_time()
  int users = 0;         // threads in if_existing(), without the lock: the driver can block them
};

std::mutex existing_mutex;
std::map<CUstream, Existing>& existing_streams() {
  static auto& streams = *new std::map<CUstream, Existing>;
  return streams;
}
std::condition_variable& existing_changed() {
  static auto& changed = *new std::condition_variable;
  return changed;
}

// Runs a wait and throws its failure. check: throws failures that only FailedStreams knows, with
// the driver's error as their cause.
template <class Wait, class Check>
auto waiting(const Library& library, Wait&& wait, Check&& check) {
  try {
    const auto result = wait();
    if (!library.reports_failed_work()) check(std::string());
    return result;
  } catch (const WorkFailure& failure) {
    check_failed_work(library, failure);
    check(std::string(failure.what()));
    throw NcclFailure(failure);
  } catch (const DriverFailure& failure) {
    Observers::driver_failed();
    check(std::string(failure.what()));
    throw;
  }
}

bool was_reached(const Library& library, CUresult result, const char* function) {
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result != CUDA_SUCCESS) throw_driver(library, result, function, __FILE__, __LINE__);
  return true;
}

// Polls on the main thread of the process, because a wait in the CUDA driver would block signal
// handlers. Each pause is a hundredth of the elapsed time, which bounds the added latency.
template <class Query>
void wait_with_handlers(const char* function, Query&& is_done) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongest(1), kCheckInterval(50);
  constexpr std::chrono::microseconds kShortest(20);  // below it, the thread only yields
  const auto began = Clock::now();
  for (auto checked = began; !is_done();) {
    const auto now = Clock::now();
    const auto pause = std::min<Clock::duration>((now - began) / 100, kLongest);
    pause < kShortest ? std::this_thread::yield() : std::this_thread::sleep_for(pause);
    if (now - checked < kCheckInterval) continue;
    checked = now;
    if (Interrupt::poll()) throw_interrupted(function);
  }
}

bool waits_with_handlers(const Library& library) {
  return library.memory() == Memory::kDevice && Interrupt::on_main_thread();
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

void check_failed_work(const Library& library, const WorkFailure& failure) {
  FailedFunctions::check(failure.origin);
  Observers::work_failed(library, failure);
}

void throw_interrupted(const char* function) {
  throw DriverFailure(CUDA_ERROR_UNKNOWN, function,
                      std::string(function) + " was interrupted by a signal");
}

bool is_capturing(const Library& library, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  DRIVER_CHECK(library, StreamIsCapturing, (stream, &status));
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

std::optional<cuuint64_t> capture_id(const Library& library, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  const CUresult result =
      library.driver().StreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr);
  if (result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return std::nullopt;
  return id;
}

Stream::Stream(std::shared_ptr<Library> library, int device, int priority)
    : library_(std::move(library)) {
  const DeviceScope scope(*library_, device);
  device_ = scope.device();
  DRIVER_CHECK(*library_, StreamCreateWithPriority, (&stream_, CU_STREAM_NON_BLOCKING, priority));
  const std::lock_guard lock(existing_mutex);
  existing_streams().insert_or_assign(stream_, Existing{coarse_time()});
  FailedStreams::forget(stream_);  // drops failures of an earlier stream with the same handle
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
  const CUstream stream = handle();
  const auto observed = Observers::waits({WaitEvent::What::kStream, stream});
  const std::int64_t began = precise_time();
  const auto check = [&](const std::string& cause) { FailedStreams::check(stream, began, cause); };
  const auto wait = [&] {
    if (waits_with_handlers(*library_)) {
      wait_with_handlers("cuStreamSynchronize", [&] { return is_done(stream); });
    } else {
      const RelaxedMode relaxed(*library_);
      CHECK_IN_CONTEXT(StreamSynchronize, (stream));
    }
    return true;
  };
  waiting(*library_, wait, check);
}

bool Stream::is_done(CUstream stream) const {
  const RelaxedMode relaxed(*library_);
  const auto call = [&](const DriverTable& driver) { return driver.StreamQuery(stream); };
  return was_reached(*library_, in_context(*library_, device_, call), "cuStreamQuery");
}

bool Stream::query() const {
  const CUstream stream = handle();
  const std::int64_t began = precise_time();
  const auto check = [&](const std::string& cause) { FailedStreams::check(stream, began, cause); };
  return waiting(*library_, [&] { return is_done(stream); }, check);
}

void Stream::wait(const Event& event) const {
  const auto observed =
      Observers::waits({WaitEvent::What::kStreamEvent, handle(), &library_, device_, &event});
  event.block(handle());
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
  std::unique_lock lock(existing_mutex);
  const auto existing = existing_streams().find(stream_);
  if (existing != existing_streams().end()) {
    existing_changed().wait(lock, [&] { return existing->second.users == 0; });
    existing_streams().erase(existing);
  }
  FailedStreams::forget(stream_);
}

bool Stream::is_existing(CUstream stream) {
  if (reinterpret_cast<std::uintptr_t>(stream) < kStreamPerThread) return true;
  const std::lock_guard lock(existing_mutex);
  return existing_streams().contains(stream);
}

bool Stream::was_created_after(CUstream stream, std::int64_t time) {
  const std::lock_guard lock(existing_mutex);
  const auto existing = existing_streams().find(stream);
  return existing != existing_streams().end() && existing->second.created > time;
}

void Stream::if_existing(CUstream stream, const std::function<void()>& function) {
  if (reinterpret_cast<std::uintptr_t>(stream) < kStreamPerThread) return function();
  std::unique_lock lock(existing_mutex);
  const auto existing = existing_streams().find(stream);
  if (existing == existing_streams().end()) return;
  ++existing->second.users;
  lock.unlock();
  const auto leave = [&] {
    lock.lock();
    if (--existing->second.users == 0) existing_changed().notify_all();
  };
  try {
    function();
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

Event::Event(std::shared_ptr<Library> library, int device, bool timing)
    : library_(std::move(library)), timing_(timing) {
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
  const bool timed = !library_->reports_failed_work() || Observers::times();
  recorded_at_.store(timed ? precise_time() : 0, std::memory_order_relaxed);
  const DefaultStreamScope scope(*library_, device_, stream);
  CHECK_IN_CONTEXT(EventRecord, (handle(), stream));
}

void Event::record_in_graph(CUstream stream) const {
  CHECK_IN_CONTEXT(EventRecordWithFlags, (handle(), stream, CU_EVENT_RECORD_EXTERNAL));
}

void Event::synchronize() const {
  const CUevent event = handle();
  const auto observed =
      Observers::waits({WaitEvent::What::kEvent, recorded_on(), nullptr, -1, this});
  const auto check = [&](const std::string& cause) { check_failed(cause); };
  const auto wait = [&] {
    if (waits_with_handlers(*library_)) {
      wait_with_handlers("cuEventSynchronize", [&] { return is_done(event); });
    } else {
      const RelaxedMode relaxed(*library_);
      CHECK_IN_CONTEXT(EventSynchronize, (event));
    }
    return true;
  };
  waiting(*library_, wait, check);
}

void Event::check_failed(const std::string& cause) const {
  FailedStreams::check_event(recorded_on(), recorded_at(), cause);
}

bool Event::done() const {
  const CUevent event = handle();
  const auto check = [&](const std::string& cause) { check_failed(cause); };
  return waiting(*library_, [&] { return is_done(event); }, check);
}

bool Event::query() const {
  try {
    return is_done(handle());
  } catch (const WorkFailure&) {
    return true;
  }
}

void Event::block(CUstream stream) const {
  if (!library_->reports_failed_work()) FailedStreams::waits(stream, recorded_on(), recorded_at());
  const auto wait = [&] {
    CHECK_IN_CONTEXT(StreamWaitEvent, (stream, handle(), 0));
    return true;
  };
  waiting(*library_, wait, [](const std::string&) {});
}

bool Event::is_done(CUevent event) const {
  const RelaxedMode relaxed(*library_);
  const auto call = [&](const DriverTable& driver) { return driver.EventQuery(event); };
  return was_reached(*library_, in_context(*library_, device_, call), "cuEventQuery");
}

double Event::elapsed_seconds(const Event& end) const {
  for (const auto& [event, name] : {std::pair(this, "event"), std::pair(&end, "end")})
    if (!event->timing_)
      throw std::invalid_argument(std::string(name) + ": it was created without timing=True");
  const RelaxedMode relaxed(*library_);
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

EventPool::EventPool(std::shared_ptr<Library> library, int device, bool timing)
    : library_(std::move(library)), device_(device), timing_(timing) {}

PooledEvent::~PooledEvent() {
  if (event_) pool_->release(std::move(event_));
}

PooledEvent EventPool::acquire() {
  std::unique_ptr<Event> event;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!event) event = std::make_unique<Event>(library_, device_, timing_);
  return {shared_from_this(), std::move(event)};
}

void EventPool::release(std::unique_ptr<Event> event) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    free_.push_back(std::move(event));
  } catch (const std::bad_alloc&) {  // the event is destroyed
  }
}

}  // namespace pynccl
