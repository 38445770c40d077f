// Inquiry: which ranks are missing from a late operation. The monitor asks. Two threads answer: one
// reaches the other ranks through a store, the other NCCL's RAS service.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/deadlines.h"
#include "nccl/failure.h"

namespace pynccl {

class Communicator;

class Inquiry {
 public:
  enum Source { kStore, kRas, kSources };

  struct Answer {
    std::string text;  // empty if nothing is known
    std::optional<MissingRanks> missing;
  };

  Inquiry(const std::shared_ptr<Communicator>& communicator, Deadlines::Late late);

  std::shared_ptr<Communicator> communicator() const { return communicator_.lock(); }
  const Deadlines::Late& late() const { return late_; }
  bool is_about(const Deadlines::Late& late) const;

  void answer(Source source, Answer answer);
  // Called by an answering thread while it waits for other ranks.
  void keep_waiting();
  // The answer of the first source that knows the missing ranks, or else of the last. None while a
  // thread makes progress that may have a better one.
  std::optional<Answer> result() const;

  static void ask(const std::shared_ptr<Inquiry>& inquiry);
  // Waits for the next question to a source for the given seconds. Returns nullptr if there is
  // none.
  static std::shared_ptr<Inquiry> take(Source source, double seconds);

 private:
  using Clock = std::chrono::steady_clock;

  const std::weak_ptr<Communicator> communicator_;
  const Deadlines::Late late_;
  const std::array<bool, kSources> asked_;
  mutable std::mutex mutex_;
  Clock::time_point heard_ = Clock::now();  // from the answering threads
  std::array<std::optional<Answer>, kSources> answers_;
};

}  // namespace pynccl
