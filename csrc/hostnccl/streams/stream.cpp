#include "hostnccl/streams/stream.h"

#include <sys/resource.h>
#include <unistd.h>

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

Running& running() {
  static Running& all = *new Running;
  return all;
}

thread_local bool in_callback = false;

}  // namespace

HandleTable<Stream>& streams() {
  static HandleTable<Stream>& table = *new HandleTable<Stream>;
  return table;
}

Stream::Stream(int priority) : priority_(std::clamp(priority, kGreatestPriority, kLeastPriority)) {}

void Stream::enqueue(const Ref<Stream>& self, Callback callback) {
  Stream& stream = *self;
  const std::lock_guard lock(stream.mutex_);
  if (!stream.has_thread_) {
    {
      const std::lock_guard running_lock(running().mutex);
      running().streams.push_back(self);
    }
    start_thread([self] {
      self->run();
      const std::lock_guard running_lock(running().mutex);
      std::erase(running().streams, self);
    });
    stream.has_thread_ = true;
  }
  stream.queue_.push_back(std::move(callback));
  ++stream.enqueued_;
  stream.changed_.notify_one();
}

// A stream's priority is the nice value of its thread. Raising it needs CAP_SYS_NICE or
// RLIMIT_NICE; without them the call fails, and all streams run with the same priority.
void Stream::prepare_thread() const {
  if (priority_ != kLeastPriority) {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), priority_);  // this thread only
  }
  Delay::bind_to_stream(number_);
}

void Stream::run() {
  prepare_thread();
  in_callback = true;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    {
      const Callback callback = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      Delay::pause();
      try {
        callback();
      } catch (...) {
        set_failed();
      }
    }
    finished_.signal(finished_.load_own() + 1);
    lock.lock();
  }
}

void Stream::synchronize() {
  uint32_t target;
  {
    const std::lock_guard lock(mutex_);
    target = enqueued_;
  }
  sleep_until({&finished_, target});
}

void Stream::synchronize_all() {
  require(!in_callback, abi::CUDA_ERROR_NOT_PERMITTED);
  std::vector<Ref<Stream>> streams;
  {
    const std::lock_guard lock(running().mutex);
    streams = running().streams;
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
