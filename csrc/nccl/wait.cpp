#include "nccl/wait.h"

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "nccl/interrupt.h"

namespace pynccl {
namespace {

struct Run {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  bool late = false;
  std::exception_ptr error;
};

}  // namespace

bool run_within(double seconds, std::function<void()> function, std::function<void()> late) {
  const auto run = std::make_shared<Run>();
  std::thread([run, function = std::move(function), late = std::move(late)]() mutable {
    try {
      function();
    } catch (...) {
      run->error = std::current_exception();
    }
    // Release the resources of both functions before the caller continues.
    function = {};
    std::unique_lock lock(run->mutex);
    const bool is_late = run->late;
    if (!is_late) late = {};
    run->done = true;
    lock.unlock();
    run->changed.notify_one();
    if (is_late && late) late();
  }).detach();
  std::unique_lock lock(run->mutex);
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  constexpr Seconds kCheckInterval(0.1);  // for signals
  const auto begin = Clock::now();
  const auto is_done = [&] { return run->done; };
  const bool interrupted_before = Interrupt::pending();
  for (;;) {
    const Seconds left = Seconds(seconds) - (Clock::now() - begin);
    if (run->changed.wait_for(lock, std::min(left, kCheckInterval), is_done)) break;
    lock.unlock();
    const bool interrupted = !interrupted_before && Interrupt::poll();
    lock.lock();
    if (run->done) break;
    if (!interrupted && left > kCheckInterval) continue;
    run->late = true;
    return false;
  }
  if (run->error) std::rethrow_exception(run->error);
  return true;
}

}  // namespace pynccl
