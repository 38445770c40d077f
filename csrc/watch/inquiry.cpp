#include "watch/inquiry.h"

#include <condition_variable>
#include <deque>
#include <utility>

#include "comm/communicator.h"
#include "comm/observer.h"
#include "common/per_process.h"

namespace pynccl {
namespace {

// How long an error waits for answering threads that make no progress.
constexpr std::chrono::milliseconds kLongestStall(2000);

struct Questions {
  std::mutex mutex;
  std::condition_variable changed;
  std::array<std::deque<std::shared_ptr<Inquiry>>, Inquiry::kSources> waiting;
};

Questions& questions() { return common::per_process<Questions>(); }

}  // namespace

Inquiry::Inquiry(const std::shared_ptr<Communicator>& communicator, Deadlines::Late late)
    : communicator_(communicator),
      late_(std::move(late)),
      asked_{communicator->store() != nullptr, communicator->asks_ras()} {}

bool Inquiry::is_about(const Deadlines::Late& late) const {
  return late.what == late_.what && late.began == late_.began;
}

void Inquiry::answer(Source source, Answer answer) {
  {
    const std::lock_guard lock(mutex_);
    answers_[source] = std::move(answer);
  }
  Observers::deadlines_changed();
}

void Inquiry::keep_waiting() {
  const std::lock_guard lock(mutex_);
  heard_ = Clock::now();
}

std::optional<Inquiry::Answer> Inquiry::result() const {
  const std::lock_guard lock(mutex_);
  const bool stalled = Clock::now() - heard_ > kLongestStall;
  Answer last;
  for (const Source source : {kStore, kRas}) {
    if (!asked_[source]) continue;
    if (!answers_[source] && !stalled) return std::nullopt;
    if (!answers_[source]) continue;
    if (answers_[source]->missing) return answers_[source];
    last = *answers_[source];
  }
  return last;
}

void Inquiry::ask(const std::shared_ptr<Inquiry>& inquiry) {
  Questions& all = questions();
  const std::lock_guard lock(all.mutex);
  for (const Source source : {kStore, kRas})
    if (inquiry->asked_[source]) all.waiting[source].push_back(inquiry);
  all.changed.notify_all();
}

std::shared_ptr<Inquiry> Inquiry::take(Source source, double seconds) {
  Questions& all = questions();
  std::unique_lock lock(all.mutex);
  const std::chrono::duration<double> longest(seconds);
  auto& waiting = all.waiting[source];
  if (!all.changed.wait_for(lock, longest, [&] { return !waiting.empty(); })) return nullptr;
  const auto inquiry = std::move(waiting.front());
  waiting.pop_front();
  return inquiry;
}

}  // namespace pynccl
