// Creation: the creation of a communicator on this rank, with its time limit and the events that
// end it early. Every wait for another rank during a creation checks it.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>

#include "hostnccl/base/error.h"
#include "hostnccl/base/flag.h"

namespace hostnccl {

class Creation {
 public:
  using Seconds = std::chrono::duration<double>;

  // The limit of creations that this thread begins from now on. Empty: HOSTNCCL_INIT_TIMEOUT.
  static void set_limit(std::optional<Seconds> limit);

  Creation();
  Creation(const Creation&) = delete;
  Creation& operator=(const Creation&) = delete;

  void begin() { deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit_); }

  // Ends the creation, from any thread.
  enum class End { None, Aborted, Interrupted, ParentAborted, ParentRevoked };
  void end(End how) { end_.store(how, std::memory_order_relaxed); }

  // Why this rank gives up, as the predicate of its name: "gave up after 0.5 s". Empty if it does
  // not.
  std::optional<Error> given_up() const;
  std::optional<Error> ended() const;  // the same without the time limit
  bool late() const { return Clock::now() >= deadline_; }
  double limit() const { return limit_.count(); }  // in seconds

 private:
  const Seconds limit_;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::atomic<End> end_{End::None};
};

}  // namespace hostnccl
