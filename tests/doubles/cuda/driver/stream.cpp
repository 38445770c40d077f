#include "driver/stream.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "driver/handles.h"
#include "driver/settings.h"

namespace cuda_double {
namespace {

Handles<Stream>& stream_handles() {
  static auto& handles = *new Handles<Stream>;
  return handles;
}

Handles<Event>& event_handles() {
  static auto& handles = *new Handles<Event>;
  return handles;
}

thread_local Context* current_context = nullptr;

// A test that would wait for the stream without releasing it fails, instead of hanging.
constexpr std::chrono::seconds kLongestHold{30};

}  // namespace

bool capturing(const Stream& stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  engine().StreamIsCapturing(stream.queue(), &status);
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool is_reached(CUevent event) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  engine().ThreadExchangeStreamCaptureMode(&mode);
  const bool reached = engine().EventQuery(event) != CUDA_ERROR_NOT_READY;
  engine().ThreadExchangeStreamCaptureMode(&mode);
  return reached;
}

CUresult launch(const Stream& stream, std::function<void()> function) {
  struct Launched {
    std::function<void()> function;
    const bool captured;  // a graph runs it again
  };
  return engine().LaunchHostFunc(
      stream.queue(),
      [](void* data) {
        auto* const launched = static_cast<Launched*>(data);
        launched->function();
        if (!launched->captured) delete launched;
      },
      new Launched{std::move(function), capturing(stream)});
}

CUresult keep_busy(const Stream& stream, double seconds) {
  return launch(stream,
                [seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
}

CUresult hold(const Stream& stream, const int* released) {
  return launch(stream, [released] {
    const auto limit = std::chrono::steady_clock::now() + kLongestHold;
    while (std::atomic_ref(*const_cast<int*>(released)).load() == 0 &&
           std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
}

Stream::Stream(Context& context, Kind kind, int priority) : context_(context), kind_(kind) {
  engine().StreamCreateWithPriority(&queue_, CU_STREAM_NON_BLOCKING, priority);
  engine().EventCreate(&last_, CU_EVENT_DISABLE_TIMING);
}

Stream::~Stream() {
  engine().StreamDestroy(queue_);
  if (last_) engine().EventDestroy(last_);
}

CUresult Stream::before_work() {
  if (kind_ == Kind::NonBlocking) return CUDA_SUCCESS;
  const std::lock_guard lock(context_.mutex_);
  if (kind_ == Kind::Blocking) {
    if (capturing(*this) || legacy_seen_ == context_.legacy_work_) return CUDA_SUCCESS;
    legacy_seen_ = context_.legacy_work_;
    return engine().StreamWaitEvent(queue_, context_.legacy_->last_, 0);
  }
  for (Stream* other : context_.streams_)
    if (other->kind_ == Kind::Blocking && capturing(*other))
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  for (Stream* other : context_.streams_) {
    if (other->kind_ != Kind::Blocking || !other->new_to_legacy_) continue;
    other->new_to_legacy_ = false;
    engine().EventRecord(other->last_, other->queue_);
    engine().StreamWaitEvent(queue_, other->last_, 0);
  }
  return CUDA_SUCCESS;
}

void Stream::after_work() {
  if (kind_ == Kind::NonBlocking) return;
  const std::lock_guard lock(context_.mutex_);
  if (kind_ == Kind::Blocking) {
    new_to_legacy_ = !capturing(*this);
    return;
  }
  engine().EventRecord(last_, queue_);
  ++context_.legacy_work_;
}

CUresult Stream::query() {
  if (kind_ == Kind::Legacy) {
    const std::lock_guard lock(context_.mutex_);
    for (Stream* other : context_.streams_)
      if (other->kind_ == Kind::Blocking && capturing(*other))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    for (Stream* other : context_.streams_) {
      if (other->kind_ != Kind::Blocking || !other->new_to_legacy_) continue;
      if (engine().StreamQuery(other->queue_) == CUDA_ERROR_NOT_READY) return CUDA_ERROR_NOT_READY;
    }
  }
  return engine().StreamQuery(queue_);
}

StreamRef Context::make_stream(Stream::Kind kind, int priority) {
  // Removes itself from the context when the last reference is released.
  StreamRef stream(new Stream(*this, kind, priority), [](Stream* gone) {
    gone->context().remove(gone);
    delete gone;
  });
  const std::lock_guard lock(mutex_);
  streams_.insert(stream.get());
  return stream;
}

StreamRef Context::legacy() {
  {
    const std::lock_guard lock(mutex_);
    if (legacy_) return legacy_;
  }
  StreamRef made = make_stream(Stream::Kind::Legacy, 0);
  const std::lock_guard lock(mutex_);
  if (!legacy_) {
    legacy_ = made;
    return made;
  }
  StreamRef first = legacy_;
  streams_.erase(made.get());
  return first;
}

StreamRef Context::per_thread() {
  thread_local std::map<Context*, StreamRef> own;
  StreamRef& stream = own[this];
  if (!stream) stream = make_stream(Stream::Kind::Blocking, 0);
  return stream;
}

void Context::remove(Stream* stream) {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
  std::erase_if(destroyed_, [](const std::shared_ptr<void>& event) {
    return is_reached(static_cast<CUevent>(event.get()));
  });
  if (capturing(*stream)) return;
  engine().EventRecord(stream->last_, stream->queue_);
  destroyed_.emplace_back(std::exchange(stream->last_, nullptr),
                          [](void* event) { engine().EventDestroy(static_cast<CUevent>(event)); });
}

std::vector<std::shared_ptr<void>> Context::work_of_destroyed() {
  const std::lock_guard lock(mutex_);
  return destroyed_;
}

std::vector<CUstream> Context::queues() {
  const std::lock_guard lock(mutex_);
  std::vector<CUstream> queues;
  for (const Stream* stream : streams_) queues.push_back(stream->queue_);
  return queues;
}

int device_count() {
  static const double count = setting("CUDA_DOUBLE_DEVICES", 4);
  return std::clamp(static_cast<int>(count), 0, kMostDevices);
}

Context& context_of(int device) {
  static auto& contexts = *new std::array<std::unique_ptr<Context>, kMostDevices>;
  static std::once_flag once;
  std::call_once(once, [] {
    for (int i = 0; i < kMostDevices; ++i) contexts[i] = std::make_unique<Context>(i);
  });
  return *contexts[static_cast<size_t>(device)];
}

Context* find_context(CUcontext handle) {
  for (int device = 0; device < device_count(); ++device)
    if (context_of(device).handle() == handle) return &context_of(device);
  return nullptr;
}

Context* current() { return current_context; }

void set_current(Context* context) { current_context = context; }

Found find_stream(CUstream handle) {
  const auto value = reinterpret_cast<uintptr_t>(handle);
  Context* context = current();
  if (context == nullptr) return {nullptr, CUDA_ERROR_INVALID_CONTEXT};
  if (value == kStreamPerThread) return {context->per_thread()};
  if (value <= kStreamLegacy) return {context->legacy()};
  StreamRef stream = stream_handles().find(handle);
  const CUresult result = stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  return {std::move(stream), result};
}

CUstream handle_of(const Stream& stream) {
  return reinterpret_cast<CUstream>(const_cast<Stream*>(&stream));
}

void publish(const StreamRef& stream) { stream_handles().add(stream); }

StreamRef withdraw(CUstream handle) { return stream_handles().take(handle); }

EventRef find_event(CUevent handle) { return event_handles().find(handle); }

CUevent publish(const EventRef& event) {
  event_handles().add(event);
  return reinterpret_cast<CUevent>(event.get());
}

EventRef withdraw(CUevent handle) { return event_handles().take(handle); }

}  // namespace cuda_double
