#include "hostnccl/streams/stream.h"

#include <algorithm>

#include "hostnccl/base/thread.h"
#include "hostnccl/streams/device_error.h"

namespace hostnccl {
namespace {

// The streams that have a thread.
struct Running {
  std::mutex mutex;
  std::vector<Ref<Stream>> streams;
};

void remove_running(const Stream* stream) {
  const std::lock_guard lock(immortal<Running>().mutex);
  std::erase_if(immortal<Running>().streams,
                [stream](const Ref<Stream>& other) { return other.get() == stream; });
}

thread_local const Stream* stream_of_thread = nullptr;  // whose callbacks this thread runs

}  // namespace

Stream::Stream(int priority) : priority_(std::clamp(priority, kGreatestPriority, kLeastPriority)) {}

Stream::Prepared::Prepared(const Ref<Stream>& stream, Callback callback) : stream_(stream) {
  callback_.push_back(std::move(callback));
  stream_->add_prepared(stream_);
}

Stream::Prepared::~Prepared() {
  if (callback_.empty()) return;
  const std::lock_guard lock(stream_->mutex_);
  --stream_->prepared_;
  stream_->changed_.notify_one();
}

void Stream::Prepared::enqueue() noexcept {
  const std::lock_guard lock(stream_->mutex_);
  stream_->queue_.splice(stream_->queue_.end(), callback_);
  stream_->worker_->set_running();
  --stream_->prepared_;
  ++stream_->enqueued_;
  stream_->changed_.notify_one();
}

void Stream::add_prepared(const Ref<Stream>& self) {
  const std::lock_guard lock(mutex_);
  if (!has_thread_) {
    {
      const std::lock_guard running_lock(immortal<Running>().mutex);
      immortal<Running>().streams.push_back(self);
    }
    worker_ = WaitingThread::make_worker();
    try {
      start_thread([self] { self->run(); });
    } catch (...) {
      remove_running(this);
      throw;
    }
    has_thread_ = true;
  }
  ++prepared_;
}

void Stream::run() {
  Delay::bind_to_stream(number_);
  stream_of_thread = this;
  std::unique_lock lock(mutex_);
  WaitingThread::adopt(worker_);
  for (;;) {
    if (queue_.empty()) worker_->set_idle();
    changed_.wait(lock, [this] { return (closed_ && prepared_ == 0) || !queue_.empty(); });
    if (queue_.empty()) break;
    {
      std::list<Callback> next;
      next.splice(next.begin(), queue_, queue_.begin());
      lock.unlock();
      Delay::pause();
      try {
        next.front()();
      } catch (...) {
        set_failure(current_error());
      }
    }
    finished_.signal(finished_.load_own() + 1);
    lock.lock();
  }
  has_thread_ = false;  // a later callback, of a caller with a reference, starts another thread
  remove_running(this);
}

void Stream::set_failure(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!latest_ || latest_->reported) latest_ = std::make_shared<StreamFailure>(error);
  if (!untaken_) untaken_ = latest_;
  has_failed_.store(true, std::memory_order_release);
}

SharedFailure Stream::take_failure(uint32_t taken_before) {
  const std::lock_guard lock(mutex_);
  if (untaken_) {
    untaken_->reported = latest_->reported = true;
    last_taken_ = std::exchange(untaken_, nullptr);
    ++taken_;
  }
  return taken_ == taken_before ? nullptr : last_taken_;
}

uint32_t Stream::taken() {
  const std::lock_guard lock(mutex_);
  return taken_;
}

SharedFailure Stream::reported_failure() {
  if (!has_failed_.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard lock(mutex_);
  return latest_ && latest_->reported ? latest_ : nullptr;
}

SharedFailure Stream::failure_besides(const SharedFailure& reported) {
  if (!has_failed_.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard lock(mutex_);
  return latest_ == reported ? nullptr : latest_;
}

void Stream::synchronize() {
  require(stream_of_thread != this, abi::CUDA_ERROR_NOT_PERMITTED);
  uint32_t target;
  {
    const std::lock_guard lock(mutex_);
    target = enqueued_;
  }
  sleep_in_process({&finished_, target});
}

void Stream::synchronize_all() {
  require(!stream_of_thread, abi::CUDA_ERROR_NOT_PERMITTED);
  std::vector<Ref<Stream>> streams;
  {
    const std::lock_guard lock(immortal<Running>().mutex);
    streams = immortal<Running>().streams;
  }
  for (const Ref<Stream>& stream : streams)
    if (stream->is_of_this_process()) stream->synchronize();
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return finished_.reached(enqueued_);
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_one();
}

}  // namespace hostnccl
