#include "core/work.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace pynccl {

Work::Work(PooledEvent done, std::shared_ptr<void> held)
    : done_(std::move(done)), held_(std::move(held)) {}

void Work::wait(CUstream stream) const {
  DRIVER_CHECK(done_->library(), StreamWaitEvent, (stream, done_->handle(), 0));
}

bool Work::wait_for(double seconds) const {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  auto pause = std::chrono::microseconds(1);
  while (!done_->query()) {
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
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  DRIVER_CHECK(library(), StreamIsCapturing, (current, &status));
  // A captured event cannot be asked; what a graph uses lives as long as the graph.
  capturing_ = status != CU_STREAM_CAPTURE_STATUS_NONE;
  if (!capturing_) forget_done();
  const PooledEvent ready = events_->take();
  ready->record(current);
  stream_->wait(*ready);
}

std::shared_ptr<Work> WorkQueue::end(std::shared_ptr<void> held) {
  PooledEvent done = events_->take();
  done->record(handle());
  auto work = std::make_shared<Work>(std::move(done), std::move(held));
  if (!capturing_) pending_.push_back(work);
  return work;
}

std::optional<std::size_t> WorkQueue::oldest() {
  forget_done();
  return pending_.empty() ? std::nullopt : std::optional(forgotten_);
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
