#include "watch/inquiry.h"

#include <condition_variable>
#include <deque>
#include <utility>

#include "comm/observer.h"
#include "common/per_process.h"

namespace pynccl {
namespace {

// How long an error waits for an answering thread that makes no progress.
constexpr std::chrono::milliseconds kLongestStall(2000);

struct Questions {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Inquiry>> waiting;
};

Questions& questions() { return common::per_process<Questions>(); }

}  // namespace

bool Inquiry::is_about(const Deadlines::Late& late) const {
  return late.what == late_.what && late.began == late_.began;
}

void Inquiry::answer(Answer answer) {
  {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }
  Observers::deadlines_changed();
}

void Inquiry::keep_waiting() {
  const std::lock_guard lock(mutex_);
  heard_ = Clock::now();
}

std::optional<Inquiry::Answer> Inquiry::result() const {
  const std::lock_guard lock(mutex_);
  if (!answer_ && Clock::now() - heard_ > kLongestStall) return Answer{};
  return answer_;
}

void Inquiry::ask(std::shared_ptr<Inquiry> inquiry) {
  Questions& all = questions();
  const std::lock_guard lock(all.mutex);
  all.waiting.push_back(std::move(inquiry));
  all.changed.notify_one();
}

std::shared_ptr<Inquiry> Inquiry::take(double seconds) {
  Questions& all = questions();
  std::unique_lock lock(all.mutex);
  const std::chrono::duration<double> longest(seconds);
  if (!all.changed.wait_for(lock, longest, [&] { return !all.waiting.empty(); })) return nullptr;
  const auto inquiry = std::move(all.waiting.front());
  all.waiting.pop_front();
  return inquiry;
}

}  // namespace pynccl
