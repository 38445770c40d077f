// Inquiry: the question which ranks are missing in an operation that is late. The monitor asks; a
// thread that can reach the other ranks, by a store, takes the question and answers.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/deadlines.h"

namespace pynccl {

class Communicator;

class Inquiry {
 public:
  struct Answer {
    std::string text;  // empty: nothing is known
    std::optional<std::vector<int>> missing;
  };

  Inquiry(std::weak_ptr<Communicator> communicator, Deadlines::Late late)
      : communicator_(std::move(communicator)), late_(std::move(late)) {}

  std::shared_ptr<Communicator> communicator() const { return communicator_.lock(); }
  const Deadlines::Late& late() const { return late_; }
  bool is_about(const Deadlines::Late& late) const;

  void answer(Answer answer);
  // What was answered; an empty answer where that takes too long; none before.
  std::optional<Answer> result() const;

  static void ask(std::shared_ptr<Inquiry> inquiry);
  // Waits for the next question for some seconds at most; nullptr where there is none.
  static std::shared_ptr<Inquiry> take(double seconds);

 private:
  using Clock = std::chrono::steady_clock;

  const std::weak_ptr<Communicator> communicator_;
  const Deadlines::Late late_;
  const Clock::time_point asked_ = Clock::now();
  mutable std::mutex mutex_;
  std::optional<Answer> answer_;
};

}  // namespace pynccl
