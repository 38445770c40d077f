// Inquiry: which ranks are missing from a late operation. The monitor asks. A thread that can reach
// the other ranks through a store, or NCCL's RAS service, answers.
#pragma once

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
  struct Answer {
    std::string text;  // empty if nothing is known
    std::optional<MissingRanks> missing;
  };

  Inquiry(std::weak_ptr<Communicator> communicator, Deadlines::Late late)
      : communicator_(std::move(communicator)), late_(std::move(late)) {}

  std::shared_ptr<Communicator> communicator() const { return communicator_.lock(); }
  const Deadlines::Late& late() const { return late_; }
  bool is_about(const Deadlines::Late& late) const;

  void answer(Answer answer);
  // Called by the answering thread while it waits for other ranks.
  void keep_waiting();
  // The answer, or an empty one if the answering thread has stalled. None until then.
  std::optional<Answer> result() const;

  static void ask(std::shared_ptr<Inquiry> inquiry);
  // Waits for the next question for the given seconds. Returns nullptr if there is none.
  static std::shared_ptr<Inquiry> take(double seconds);

 private:
  using Clock = std::chrono::steady_clock;

  const std::weak_ptr<Communicator> communicator_;
  const Deadlines::Late late_;
  mutable std::mutex mutex_;
  Clock::time_point heard_ = Clock::now();  // from the answering thread
  std::optional<Answer> answer_;
};

}  // namespace pynccl
