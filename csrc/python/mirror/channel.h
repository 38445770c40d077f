// A communicator with the stream of its asynchronous operations: what the fast functions need of
// the Python class Channel, which inherits it.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <mutex>
#include <optional>

#include "core/async_operation.h"
#include "core/communicator.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/mirror/work.h"

namespace pynccl::python::mirror {

class Channel {
 public:
  Channel(std::shared_ptr<Communicator> communicator, int priority)
      : communicator_(std::move(communicator)), priority_(priority) {}

  Communicator& communicator() const { return *communicator_; }
  const std::shared_ptr<Communicator>& shared_communicator() const { return communicator_; }

  // Whether calls are taken; not any more when one has taken too long.
  bool usable() const { return usable_; }
  void refuse() { usable_ = false; }

  // A synchronous call: while one is under way the number of calls is odd, and the watchdog sees
  // whether it is still the same.
  class Bracket {
   public:
    explicit Bracket(Channel& channel) : calls_(channel.calls_) { step(); }
    ~Bracket() { step(); }
    Bracket(const Bracket&) = delete;
    Bracket& operator=(const Bracket&) = delete;

   private:
    void step() { calls_.fetch_add(1, std::memory_order_relaxed); }
    std::atomic<std::size_t>& calls_;
  };

  // Issues on the communication stream, after what is on the current one. issue takes the stream,
  // and leaves the GIL as it finds it; held lives until the work was waited for or is done.
  template <class Issue>
  PyObject* start(Work&& work, py::object held, Issue&& issue) {
    // Who waits for its turn must not keep the GIL from whoever has it.
    std::unique_lock turn(order_, std::try_to_lock);
    if (!turn) [[unlikely]] {
      const GilReleased released;
      turn.lock();
    }
    AsyncQueue& queue = this->queue();
    queue.begin(work.current_stream());
    issue(queue.handle());
    work.operation = queue.end(hold(std::move(held)));
    turn.unlock();
    return make_work(std::move(work));
  }

  // The communication stream and its queue, made when they are first asked for.
  const std::shared_ptr<Stream>& stream();
  AsyncQueue& queue();

  // The number of the synchronous call that is under way, 0 for none.
  std::size_t call_under_way() const {
    const std::size_t calls = calls_.load(std::memory_order_relaxed);
    return calls % 2 ? calls : 0;
  }
  // The number of the oldest asynchronous operation that is not done.
  std::optional<std::size_t> oldest() { return queue_ ? queue_->oldest() : std::nullopt; }

 private:
  std::shared_ptr<Communicator> communicator_;
  int priority_;
  bool usable_ = true;
  std::atomic<std::size_t> calls_ = 0;
  std::mutex order_;
  std::shared_ptr<Stream> stream_;
  std::optional<AsyncQueue> queue_;
};

// Replaces the exception that is raised now, if it is of NCCL or the driver.
[[gnu::cold]] void explain(const py::object& channel, PyObject* name);

// Runs body, which gives a new reference. Where NCCL or the driver fails, what is raised is what
// the channel (Python's) makes of it; name is the operation's.
template <class Body>
PyObject* explained(const py::object& channel, PyObject* name, Body&& body) {
  PyObject* result = guarded(std::forward<Body>(body));
  if (!result) [[unlikely]]
    explain(channel, name);
  return result;
}

}  // namespace pynccl::python::mirror
