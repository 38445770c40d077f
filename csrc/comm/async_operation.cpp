#include "comm/async_operation.h"

#include "comm/graph.h"
#include "nccl/device.h"
#include "nccl/wait.h"

namespace pynccl {
AsyncOperation::AsyncOperation(PooledEvent done, std::shared_ptr<void> held, int device,
                               std::unique_ptr<const Capture> capture)
    : done_(std::move(done)),
      held_(std::move(held)),
      device_(device),
      capture_(std::move(capture)) {}

void AsyncOperation::check_issued() const {
  const State state = state_.load(std::memory_order_acquire);
  if (state == State::kIssued) [[likely]]
    return;
  if (state == State::kDeferred)
    throw std::invalid_argument(
        "work: not issued until the end of its group; leave the group first");
  if (state == State::kDropped)
    throw std::invalid_argument("work: not issued, because its group failed");
}

void AsyncOperation::drop() {
  state_.store(State::kDropped, std::memory_order_release);
  release();
}

void AsyncOperation::check_state() const {
  check_issued();
  if (captured())
    throw std::invalid_argument(
        "work: it was captured into a graph, and runs at every launch of the graph");
}

// Waiting for an event of another capture would invalidate the stream's capture.
void AsyncOperation::check_capture(CUstream stream) const {
  const Library& library = done_->library();
  if (capture_id(library, capture_->stream->handle()) != capture_->id)
    throw std::invalid_argument(
        "work: it was captured into a graph, whose capture has ended; it runs at every launch of "
        "the graph");
  if (capture_id(library, stream).value_or(capture_->id) != capture_->id)
    throw std::invalid_argument(
        "work: it was captured into a graph, and the stream is being captured into another one");
}

bool AsyncOperation::done() const {
  check_state();
  return done_->query();
}

void AsyncOperation::wait(CUstream stream) const {
  check_issued();
  const DefaultStreamScope scope(done_->library(), device_, stream);
  if (captured()) [[unlikely]]
    check_capture(stream);
  done_->block(stream);
}

bool AsyncOperation::wait_for(double seconds) const {
  return poll_until(seconds, [this] {
    check_state();
    return done_->done();
  });
}

AsyncQueue::AsyncQueue(std::shared_ptr<Library> library, std::shared_ptr<Stream> stream)
    : stream_(std::move(stream)),
      events_(std::make_shared<EventPool>(std::move(library), stream_->device())) {}

std::shared_ptr<AsyncOperation> AsyncQueue::begin(CUstream current, std::shared_ptr<void> held) {
  const DefaultStreamScope scope(library(), stream_->device(), current);
  // Captured events cannot be queried. They still return to the pool, because their next user
  // records them again, outside the graph.
  const bool capturing = is_capturing(library(), current);
  if (!capturing) remove_done();
  const PooledEvent ready = events_->acquire();
  ready->record(current);
  stream_->wait(*ready);
  std::unique_ptr<const AsyncOperation::Capture> capture;
  if (capturing) [[unlikely]]
    capture = std::make_unique<AsyncOperation::Capture>(
        stream_, capture_id(library(), handle()).value_or(0));
  return std::make_shared<AsyncOperation>(events_->acquire(), std::move(held), stream_->device(),
                                          std::move(capture));
}

void AsyncQueue::end(std::shared_ptr<AsyncOperation> operation) {
  operation->done_->record(handle());
  operation->state_.store(AsyncOperation::State::kIssued, std::memory_order_release);
  if (operation->captured())
    Graph::keep_alive(library(), handle(), operation->held_);
  else
    pending_.push_back(std::move(operation));
}

std::optional<std::size_t> AsyncQueue::oldest() {
  remove_done();
  return pending_.empty() ? std::nullopt : std::optional(removed_);
}

void AsyncQueue::release_done(CUstream current) {
  const DefaultStreamScope scope(library(), stream_->device(), current);
  if (!is_capturing(library(), current)) remove_done();
}

void AsyncQueue::remove_done() {
  while (!pending_.empty() && pending_.front()->done()) {
    // Pop first: releasing the held objects may run code that reenters this function.
    const auto done = std::move(pending_.front());
    pending_.pop_front();
    ++removed_;
  }
}

}  // namespace pynccl
