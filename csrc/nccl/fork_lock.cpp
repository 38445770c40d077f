#include "nccl/fork_lock.h"

#include <pthread.h>

#include <chrono>
#include <shared_mutex>
#include <utility>

#include "common/per_process.h"

namespace pynccl {
namespace {

constexpr std::chrono::milliseconds kLongestBeforeFork(500);

// A forked child gets a new one.
std::shared_timed_mutex& mutex() { return common::per_process<std::shared_timed_mutex>(); }

thread_local bool locked_by_fork = false;

void before_fork() { locked_by_fork = mutex().try_lock_for(kLongestBeforeFork); }

void after_fork() {
  if (std::exchange(locked_by_fork, false)) mutex().unlock();
}

// Registered when the library is loaded, like per_process().
[[maybe_unused]] const int fork_handlers = pthread_atfork(&before_fork, &after_fork, nullptr);

}  // namespace

ForkLock::ForkLock() { mutex().lock_shared(); }

ForkLock::~ForkLock() { mutex().unlock_shared(); }

}  // namespace pynccl
