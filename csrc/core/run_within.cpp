#include "core/run_within.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

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
    function = {};  // what it holds is released before the caller continues
    std::unique_lock lock(run->mutex);
    run->done = true;
    const bool is_late = run->late;
    lock.unlock();
    run->changed.notify_one();
    if (is_late && late) late();
  }).detach();
  std::unique_lock lock(run->mutex);
  const std::chrono::duration<double> limit(seconds);
  if (!run->changed.wait_for(lock, limit, [&] { return run->done; })) {
    run->late = true;
    return false;
  }
  if (run->error) std::rethrow_exception(run->error);
  return true;
}

}  // namespace pynccl
