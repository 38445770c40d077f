#include "core/stream.h"

#include "core/device.h"

namespace pynccl {
namespace {

// The relaxed capture mode for the length of a scope. A query of a stream or event in another mode
// invalidates a global capture of another thread.
class RelaxedMode {
 public:
  explicit RelaxedMode(const Library& library) : library_(library) { exchange(); }
  ~RelaxedMode() { exchange(); }
  RelaxedMode(const RelaxedMode&) = delete;
  RelaxedMode& operator=(const RelaxedMode&) = delete;

 private:
  void exchange() { library_.driver().ThreadExchangeStreamCaptureMode(&mode_); }

  const Library& library_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

bool done(const Library& library, CUresult result, const char* function) {
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result != CUDA_SUCCESS) throw_driver(library, result, function, __FILE__, __LINE__);
  return true;
}

}  // namespace

Stream::Stream(std::shared_ptr<Library> library, int device, int priority)
    : library_(std::move(library)) {
  const DeviceScope scope(*library_, device);
  device_ = scope.device();
  DRIVER_CHECK(*library_, StreamCreateWithPriority, (&stream_, CU_STREAM_NON_BLOCKING, priority));
}

Stream::~Stream() {
  if (stream_) library_->driver().StreamDestroy(stream_);
}

CUstream Stream::handle() const {
  if (!stream_) throw std::invalid_argument("stream: it is closed");
  return stream_;
}

int Stream::priority() const {
  int priority = 0;
  DRIVER_CHECK(*library_, StreamGetPriority, (handle(), &priority));
  return priority;
}

CUstreamCaptureStatus Stream::capture_status() const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  DRIVER_CHECK(*library_, StreamIsCapturing, (handle(), &status));
  return status;
}

void Stream::synchronize() const { DRIVER_CHECK(*library_, StreamSynchronize, (handle())); }

bool Stream::query() const {
  const RelaxedMode relaxed(*library_);
  return done(*library_, library_->driver().StreamQuery(handle()), "cuStreamQuery");
}

void Stream::wait(const Event& event) const {
  DRIVER_CHECK(*library_, StreamWaitEvent, (handle(), event.handle(), 0));
}

void Stream::launch_host_function(CUhostFn function, void* data) const {
  DRIVER_CHECK(*library_, LaunchHostFunc, (handle(), function, data));
}

void Stream::close() {
  if (!stream_) return;
  const CUstream stream = stream_;
  stream_ = nullptr;
  DRIVER_CHECK(*library_, StreamDestroy, (stream));
}

Event::Event(std::shared_ptr<Library> library, int device, bool timing)
    : library_(std::move(library)) {
  const DeviceScope scope(*library_, device);
  DRIVER_CHECK(*library_, EventCreate,
               (&event_, timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
}

Event::~Event() {
  if (event_) library_->driver().EventDestroy(event_);
}

CUevent Event::handle() const {
  if (!event_) throw std::invalid_argument("event: it is closed");
  return event_;
}

void Event::record(CUstream stream) const {
  DRIVER_CHECK(*library_, EventRecord, (handle(), stream));
}

void Event::synchronize() const { DRIVER_CHECK(*library_, EventSynchronize, (handle())); }

bool Event::query() const {
  const RelaxedMode relaxed(*library_);
  return done(*library_, library_->driver().EventQuery(handle()), "cuEventQuery");
}

double Event::elapsed_seconds(const Event& end) const {
  float milliseconds = 0;
  DRIVER_CHECK(*library_, EventElapsedTime, (&milliseconds, handle(), end.handle()));
  return static_cast<double>(milliseconds) / 1e3;
}

void Event::close() {
  if (!event_) return;
  const CUevent event = event_;
  event_ = nullptr;
  DRIVER_CHECK(*library_, EventDestroy, (event));
}

}  // namespace pynccl
