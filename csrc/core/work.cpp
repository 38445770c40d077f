#include "core/work.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/device.h"
#include "core/graph.h"

namespace pynccl {
namespace {

// A default stream is that of the current device: for the length of a scope, the right one.
class DefaultStreamScope {
 public:
  DefaultStreamScope(const Library& library, int device, CUstream stream) {
    if (reinterpret_cast<std::uintptr_t>(stream) <= kStreamPerThread)
      scope_.emplace(library, device);
  }

 private:
  std::optional<DeviceScope> scope_;
};

}  // namespace

Work::Work(PooledEvent done, std::shared_ptr<void> held, int device, bool captured)
    : done_(std::move(done)), held_(std::move(held)), device_(device), captured_(captured) {}

bool Work::done() const {
  if (captured_)
    throw std::invalid_argument(
        "work: it was captured into a graph; it runs whenever that is launched");
  return done_->query();
}

void Work::wait(CUstream stream) const {
  const DefaultStreamScope scope(done_->library(), device_, stream);
  DRIVER_CHECK(done_->library(), StreamWaitEvent, (stream, done_->handle(), 0));
}

bool Work::wait_for(double seconds) const {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  auto pause = std::chrono::microseconds(1);
  while (!done()) {
    if (std::chrono::duration<double>(Clock::now() - start).count() > seconds) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(1000));
  }
  return true;
}

WorkQueue::WorkQueue(std::shared_ptr<Library> library, std::shared_ptr<Stream> stream)
    : stream_(std::move(stream)),
      events_(std::make_shared<EventPool>(std::move(library), stream_->device())) {}

void WorkQueue::begin(CUstream current) {
  const DefaultStreamScope scope(library(), stream_->device(), current);
  // A captured event cannot be asked. It may go back to the pool all the same: whoever takes it
  // records it again, which makes it an event like others, and a graph has no part in it.
  capturing_ = is_capturing(current);
  if (!capturing_) forget_done();
  const PooledEvent ready = events_->take();
  ready->record(current);
  stream_->wait(*ready);
}

std::shared_ptr<Work> WorkQueue::end(std::shared_ptr<void> held) {
  PooledEvent done = events_->take();
  done->record(handle());
  if (capturing_) Graph::hold(library(), handle(), held);
  auto work =
      std::make_shared<Work>(std::move(done), std::move(held), stream_->device(), capturing_);
  if (!capturing_) pending_.push_back(work);
  return work;
}

std::optional<std::size_t> WorkQueue::oldest() {
  forget_done();
  return pending_.empty() ? std::nullopt : std::optional(forgotten_);
}

bool WorkQueue::is_capturing(CUstream current) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  DRIVER_CHECK(library(), StreamIsCapturing, (current, &status));
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void WorkQueue::release_done(CUstream current) {
  const DefaultStreamScope scope(library(), stream_->device(), current);
  if (!is_capturing(current)) forget_done();
}

void WorkQueue::forget_done() {
  while (!pending_.empty() && pending_.front()->done()) {
    // Out of the queue before what it holds goes: that may run code which comes back here.
    const auto done = std::move(pending_.front());
    pending_.pop_front();
    ++forgotten_;
  }
}

}  // namespace pynccl
