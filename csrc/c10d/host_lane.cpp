// The lane of a communicator for CPU memory. A call on the null stream returns when its operation
// is complete, so asynchronous operations are calls on the thread of the lane, or on a thread that
// waits for them before that one has begun them.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <thread>
#include <vector>

#include "lane.h"
#include "work.h"

namespace pynccl::dist {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kStopLimit{100};  // for a thread to notice the stop request
constexpr std::chrono::seconds kFinishLimit{2};       // for pending operations at finalization
constexpr std::chrono::seconds kAbortLimit{1};        // for aborted operations
constexpr std::chrono::milliseconds kHandover{5};

// A wait within this time of its operation runs it sooner than a woken thread would. After kWaits
// such waits in a row, the thread of the lane is no longer woken. It polls every kNap while
// operations arrive, and runs any that has been pending for longer than kAtOnce.
constexpr std::chrono::microseconds kAtOnce{50};
constexpr std::chrono::microseconds kNap{200};
constexpr int kWaits = 16;

class HostLane final : public Lane {
 public:
  HostLane(std::shared_ptr<Connection> connection, std::shared_ptr<Hooks> hooks)
      : Lane(std::move(connection), std::move(hooks)), queue_(std::make_shared<Queue>()) {}

  ~HostLane() override {
    if (queue_->is_forked()) {
      if (thread_.joinable()) thread_.detach();
      return;
    }
    queue_->stop();
    if (!thread_.joinable()) return;
    // At finalization, the thread may wait for the GIL forever, or in NCCL for a connection.
    const bool may_stay = !connection_->connected() || Ending::begun();
    const bool stays = may_stay && !queue_->finish(Clock::now() + kStopLimit);
    if (stays || !Py_IsInitialized() || queue_->held_by_this_thread())
      thread_.detach();
    else
      thread_.join();
  }

  c10::intrusive_ptr<PyncclWork> issue(Operation operation, int rank,
                                       std::chrono::milliseconds timeout) override {
    if (queue_->is_forked()) [[unlikely]]
      throw_forked();
    auto work = c10::make_intrusive<HostWork>(rank, operation, timeout, connection_);
    Task task{connection_, hooks_, std::move(operation), work};
    // A callback that waits for its own operation runs on the thread that would execute it.
    if (task.operation.async && !queue_->held_by_this_thread()) {
      start_thread();
      work->queued_in(queue_);
      queue_->add(std::move(task));
    } else {
      const Queue::Turn turn(*queue_);
      task.run();
      if (auto error = work->exception()) [[unlikely]]
        std::rethrow_exception(error);
    }
    return work;
  }

  c10::intrusive_ptr<PyncclWork> work_without_issue(Operation operation, int rank,
                                                    std::chrono::milliseconds timeout) override {
    auto work = c10::make_intrusive<HostWork>(rank, operation, timeout, connection_);
    work->settle(nullptr);
    return work;
  }

  void run(const std::function<void()>& body) override {
    if (queue_->is_forked()) throw_forked();
    const Queue::Turn turn(*queue_);
    body();
  }

  bool drain(std::chrono::milliseconds timeout) override {
    return !queue_->is_forked() && queue_->drain(timeout);
  }
  void retire() override {
    if (!queue_->is_forked()) queue_->stop();
  }

  static void leave(const std::function<void()>& cancel);

 private:
  // The threads of the parent may have held any lock of the queue.
  [[noreturn]] static void throw_forked() {
    throw_backend_error(
        "the process group was created before this process was forked: a child must create its "
        "own process groups");
  }

  struct Task {
    std::shared_ptr<Connection> connection;
    std::shared_ptr<Hooks> hooks;
    Operation operation;
    c10::intrusive_ptr<HostWork> work;

    void run() {
      std::exception_ptr error;
      operation.timed |= hooks->report_completions();
      try {
        work->run(operation);
      } catch (...) {
        error = std::current_exception();
        if (!connection->connected() || connection->failed()) hooks->failed();
      }
      work->settle(error);
      if (!error && hooks->report_completions())
        hooks->completed(work->completion_key(), work->duration());
    }
  };

  // The pending operations, and the thread that runs one.
  class Queue final : public WorkQueue {
   public:
    void add(Task task) {
      std::unique_lock lock(mutex_);
      if (stopped_) {  // no thread; the communicator has ended, so it fails at once
        lock.unlock();
        return task.run();
      }
      if (tasks_.empty()) {
        since_ = Clock::now();
        withheld_ = !asleep_ && waits_ >= kWaits;
      }
      tasks_.push_back(std::move(task));
      ++added_;
      if (!withheld_) wake();
    }

    // The order of the communicator includes the operations before that of work. Their callbacks
    // stay on the thread of the lane, because this one may hold locks that they need.
    void run_until(const HostWork& work) override {
      std::unique_lock lock(mutex_);
      waits_ = Clock::now() - since_ > kAtOnce ? 0 : std::min(waits_ + 1, kWaits);
      const auto found = std::find_if(tasks_.begin(), tasks_.end(),
                                      [&work](const Task& task) { return &work == &*task.work; });
      if (found == tasks_.end()) return;
      if (!run_first(lock, found - tasks_.begin() + 1)) rouse();
    }

    void start() override {
      const std::scoped_lock lock(mutex_);
      waits_ = 0;
      rouse();
    }

    void stop() {
      const std::scoped_lock lock(mutex_);
      stopped_ = true;
      wake();
      changed_.notify_all();
    }

    bool drain(std::chrono::milliseconds timeout) {
      std::unique_lock lock(mutex_);
      rouse();
      const Waiter waiter(*this);
      return wait_with_signals(changed_, lock, Clock::now() + timeout, [this] { return idle(); });
    }

    // Waits until no asynchronous operation is pending or running.
    bool finish(Clock::time_point until) {
      std::unique_lock lock(mutex_);
      rouse();
      const Waiter waiter(*this);
      return changed_.wait_until(lock, until, [this] { return tasks_.empty() && !running_; });
    }

    bool held_by_this_thread() {
      const std::scoped_lock lock(mutex_);
      return holder_ == std::this_thread::get_id();
    }

    // The loop of the lane's thread.
    void run() {
      Ending::exempt_thread();
      std::unique_lock lock(mutex_);
      while (true) {
        sleep(lock);
        if (tasks_.empty()) return;
        if (std::exchange(withheld_, false)) waits_ = 0;
        hold();
        run_front(lock);
        release();
      }
    }

    // Waits for the turn of a synchronous operation, after previously issued ones. A future's
    // callback, which runs on the thread that holds the lane, does not wait.
    class Turn {
     public:
      explicit Turn(Queue& queue) : queue_(queue) {
        std::unique_lock lock(queue_.mutex_);
        nested_ = queue_.holder_ == std::this_thread::get_id();
        if (nested_) return;
        if (!queue_.idle() && !queue_.run_first(lock, std::ssize(queue_.tasks_))) queue_.rouse();
        if (!queue_.idle()) {
          const Waiter waiter(queue_);
          wait_with_signals(queue_.changed_, lock, std::nullopt, [this] { return queue_.idle(); });
        }
        queue_.hold();
      }
      ~Turn() {
        if (nested_) return;
        const std::scoped_lock lock(queue_.mutex_);
        queue_.release();
      }
      Turn(const Turn&) = delete;
      Turn& operator=(const Turn&) = delete;

     private:
      Queue& queue_;
      bool nested_;
    };

   private:
    // Counts the waiters for an idle queue. Constructed and destroyed under the lock.
    struct Waiter {
      explicit Waiter(Queue& queue) : count_(queue.waiters_) { ++count_; }
      ~Waiter() { --count_; }
      Waiter(const Waiter&) = delete;
      Waiter& operator=(const Waiter&) = delete;
      int& count_;
    };

    bool held() const { return holder_ != std::thread::id(); }
    bool idle() const { return !held() && tasks_.empty(); }
    void hold() { holder_ = std::this_thread::get_id(); }

    void release() {
      holder_ = {};
      if (stopped_ || (!tasks_.empty() && (!withheld_ || asleep_))) wake();
      if (waiters_ > 0) changed_.notify_all();
    }

    // Lets the thread of the lane run the pending operations.
    void rouse() {
      withheld_ = false;
      if (!held() && !tasks_.empty()) wake();
    }

    void wake() {
      asleep_ = false;
      wake_.notify_one();
    }

    // Runs the first tasks on this thread. Returns false if another thread runs one, or if a task
    // would connect or complete a future. A callback of an operation runs them in any case,
    // because its thread holds the lane.
    bool run_first(std::unique_lock<std::mutex>& lock, std::ptrdiff_t count) {
      const bool nested = holder_ == std::this_thread::get_id();
      const auto is_plain = [](const Task& task) {
        return task.connection->connected() && !task.work->has_future();
      };
      if (!nested && (held() || !std::all_of(tasks_.begin(), tasks_.begin() + count, is_plain)))
        return false;
      hold();
      const auto begun = [this] { return added_ - tasks_.size(); };
      for (const auto until = begun() + static_cast<std::size_t>(count); begun() < until;)
        run_front(lock);  // a callback may run further ones
      if (!nested) release();
      return true;
    }

    void run_front(std::unique_lock<std::mutex>& lock) {
      const bool outer = std::exchange(running_, true);
      {
        Task task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        task.run();
      }  // releases the tensors without the lock
      lock.lock();
      running_ = outer;
      since_ = Clock::now();
    }

    // Returns when the thread of the lane must run the first task, or end.
    void sleep(std::unique_lock<std::mutex>& lock) {
      for (auto seen = added_;;) {
        std::chrono::nanoseconds time = kNap;
        if (!held()) {
          if (stopped_ || (!tasks_.empty() && !withheld_)) return;
          if (!tasks_.empty()) {
            time = since_ + kAtOnce - Clock::now();
            if (time <= time.zero()) return;
          }
        }
        if (seen != added_ || (!held() && !tasks_.empty())) {
          seen = added_;
          wake_.wait_for(lock, time);
        } else {
          asleep_ = true;
          wake_.wait(lock);
          asleep_ = false;
        }
      }
    }

    std::mutex mutex_;
    std::condition_variable wake_;     // for the thread of the lane
    std::condition_variable changed_;  // for the other waiting threads
    std::deque<Task> tasks_;
    std::uint64_t added_ = 0;  // tasks so far
    std::thread::id holder_;   // the thread that runs an operation
    bool running_ = false;     // whether that is an asynchronous one
    bool stopped_ = false;
    int waiters_ = 0;
    Clock::time_point since_;  // when the first task could begin, or the last one ended
    int waits_ = 0;            // in sequence that followed within kAtOnce, up to kWaits
    bool withheld_ = false;    // the thread of the lane was not woken for the tasks
    bool asleep_ = false;      // it does not poll for tasks before it is woken
  };

  // A lane with a thread, for finalization of the interpreter.
  struct Started {
    std::weak_ptr<Queue> queue;
    std::weak_ptr<Connection> connection;
  };

  struct AllStarted {
    std::mutex mutex;
    std::vector<Started> lanes;
  };

  static AllStarted& all_started() {
    static auto* all = new AllStarted;  // never freed: threads use it until the process ends
    return *all;
  }

  void start_thread() {
    std::call_once(started_, [this] {
      thread_ = std::thread([queue = queue_] { queue->run(); });
      AllStarted& all = all_started();
      const std::scoped_lock lock(all.mutex);
      std::erase_if(all.lanes, [](const Started& one) { return one.queue.expired(); });
      all.lanes.push_back({.queue = queue_, .connection = connection_});
    });
  }

  const std::shared_ptr<Queue> queue_;
  std::once_flag started_;
  std::thread thread_;
};

void HostLane::leave(const std::function<void()>& cancel) {
  const auto started = [] {
    AllStarted& all = all_started();
    const std::scoped_lock lock(all.mutex);
    return all.lanes;
  };
  // Waits for lanes to finish until a time; then aborts the remaining ones if requested.
  const auto finish = [&started](Clock::time_point until, bool aborts) {
    bool finished = true;
    for (const Started& one : started()) {
      const auto queue = one.queue.lock();
      if (!queue || queue->is_forked() || queue->finish(until)) continue;
      finished = false;
      if (const auto connection = one.connection.lock(); aborts && connection) {
        try {
          connection->end(false, "the interpreter is shutting down");
        } catch (const std::exception&) {  // the operation fails anyway
        }
      }
    }
    return finished;
  };
  if (!finish(Clock::now() + kFinishLimit, false)) {
    cancel();
    finish(Clock::now(), true);
    finish(Clock::now() + kAbortLimit, false);
  }
  // Threads that are returning from the backend acquire the GIL once more.
  std::this_thread::sleep_for(kHandover);
}

}  // namespace

void leave_host_lanes(const std::function<void()>& cancel) { HostLane::leave(cancel); }

std::unique_ptr<Lane> make_host_lane(std::shared_ptr<Connection> connection,
                                     std::shared_ptr<Hooks> hooks) {
  return std::make_unique<HostLane>(std::move(connection), std::move(hooks));
}

}  // namespace pynccl::dist
