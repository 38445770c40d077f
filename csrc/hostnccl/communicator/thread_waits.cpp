#include "hostnccl/communicator/thread_waits.h"

#include <algorithm>
#include <utility>

#include "common/per_process.h"
#include "hostnccl/base/interrupt.h"

namespace hostnccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<WaitingThread*> threads;
};

Registry& registry() { return common::per_process<Registry>(); }

std::atomic<uint64_t> last_number{0};

}  // namespace

struct ThisThread {
  std::shared_ptr<WaitingThread> thread;
  ~ThisThread() {
    if (thread) thread->ended_ = true;
  }
  static ThisThread& get() {
    thread_local ThisThread instance;
    return instance;
  }
};

WaitingThread& WaitingThread::current() {
  std::shared_ptr<WaitingThread>& thread = ThisThread::get().thread;
  if (!thread) [[unlikely]]
    thread = std::make_shared<WaitingThread>();
  return *thread;
}

std::shared_ptr<WaitingThread> WaitingThread::share_current() {
  current();
  return ThisThread::get().thread;
}

WaitingThread::WaitingThread() : number_(++last_number) { enroll(); }

WaitingThread::~WaitingThread() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase(all.threads, this);
}

void WaitingThread::enroll() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  generation_ = fork_generation();
  all.threads.push_back(this);
}

std::shared_ptr<WaitingThread> WaitingThread::make_worker() {
  auto worker = std::make_shared<WaitingThread>();
  worker->worker_ = true;
  return worker;
}

void WaitingThread::adopt(std::shared_ptr<WaitingThread> worker) {
  ThisThread::get().thread = std::move(worker);
}

void WaitingThread::set_idle() { state_.store(State::Idle, std::memory_order_release); }

void WaitingThread::set_running() {
  State idle = State::Idle;
  state_.compare_exchange_strong(idle, State::Running);
}

void WaitingThread::sleep(std::span<const Wait> waits) {
  if (generation_ != fork_generation()) [[unlikely]] {
    std::construct_at(&mutex_);  // another thread may have owned it at the fork
    enroll();
  }
  const std::lock_guard lock(mutex_);
  waits_.assign(waits.begin(), waits.end());
  since_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  state_.store(State::Asleep, std::memory_order_release);
}

void WaitingThread::wake() {
  const std::lock_guard lock(mutex_);
  state_.store(State::Running, std::memory_order_release);
  waits_.clear();
}

void WaitingThread::visit_waits(const Visitor& visit) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const WaitingThread* thread : all.threads) {
    const std::lock_guard thread_lock(thread->mutex_);
    for (const Wait& wait : thread->waits_) visit(thread->number(), wait);
  }
}

std::optional<int64_t> WaitingThread::all_asleep(const Visitor& visit) {
  // A thread that falls asleep later may have woken one that was already checked.
  const int64_t began = Clock::now().time_since_epoch().count();
  int64_t since = 0;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const WaitingThread* thread : all.threads) {
    if (!thread->matters()) continue;
    const std::lock_guard thread_lock(thread->mutex_);
    const State state = thread->state_.load(std::memory_order_acquire);
    if (state == State::Idle) continue;
    const auto met = [](const Wait& wait) { return wait.condition.met(); };
    if (state == State::Running || thread->asleep_since() > began ||
        std::ranges::any_of(thread->waits_, met))
      return std::nullopt;
    since = std::max(since, thread->asleep_since());
    for (const Wait& wait : thread->waits_) visit(thread->number(), wait);
  }
  return since;
}

void sleep_in_process(const WaitCondition& condition) {
  if (condition.met()) return;
  const Sleeping sleeping({condition});
  sleep_until(condition, [](bool) { check_interrupt(); });
}

}  // namespace hostnccl
