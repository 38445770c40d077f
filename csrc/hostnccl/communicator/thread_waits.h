// The waits of this process's threads that sleep in the engine, for the errors of revocations and
// for deadlock detection (deadlock.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "hostnccl/base/flag.h"
#include "hostnccl/base/process.h"
#include "hostnccl/base/thread.h"
#include "hostnccl/communicator/operation.h"
#include "hostnccl/segment/wait_board.h"

namespace hostnccl {

struct Wait;

// The communicator of a wait.
class WaitingCommunicator {
 public:
  // Adds the process that can end the wait, and the text.
  virtual void describe(const Wait& wait, PublishedWait& published) const = 0;

 protected:
  ~WaitingCommunicator() = default;
};

struct Wait {
  WaitCondition condition;
  const WaitingCommunicator* comm = nullptr;  // null: a stream, an event or a graph of this process
  int peer = 0;                               // the rank of comm that signals the flag
  Operation operation{};                      // of comm
};

// A thread that uses the engine: of the user, of a stream or of a job.
class WaitingThread {
 public:
  static WaitingThread& current();
  static std::shared_ptr<WaitingThread> share_current();

  WaitingThread();
  WaitingThread(const WaitingThread&) = delete;
  WaitingThread& operator=(const WaitingThread&) = delete;
  ~WaitingThread();

  // For a thread that is about to start, and counts as running from now on. The thread adopts it.
  static std::shared_ptr<WaitingThread> make_worker();
  static void adopt(std::shared_ptr<WaitingThread> worker);
  // An idle worker: no other rank can depend on it.
  void set_idle();
  void set_running();  // if it is idle

  // Called before the thread sleeps until all conditions are met, possibly one after the other.
  void sleep(std::span<const Wait> waits);
  void wake();
  int64_t asleep_since() const { return since_.load(std::memory_order_relaxed); }

  uint64_t number() const { return number_; }
  bool ended() const { return ended_; }
  // Whether other ranks may depend on the thread's next call: it has issued operations of open
  // communicators, or has created communicators on which no thread has issued any.
  bool matters() const { return unused_ != 0 || (!ended_ && (worker_ || used_ != 0)); }
  void add_used(int communicators) { used_.fetch_add(communicators); }
  void add_unused(int communicators) { unused_.fetch_add(communicators); }

  // Calls the visitor with the number of each sleeping thread and each of its waits.
  using Visitor = std::function<void(uint64_t thread, const Wait& wait)>;
  static void visit_waits(const Visitor& visit);

  // If all threads that matter sleep and cannot continue, or are idle, visits their waits and
  // returns since when they sleep, in nanoseconds of Clock.
  static std::optional<int64_t> all_asleep(const Visitor& visit);

 private:
  enum class State : uint8_t { Running, Idle, Asleep };

  friend struct ThisThread;

  void enroll();

  const uint64_t number_;
  uint32_t generation_ = 0;
  std::atomic<State> state_{State::Running};
  std::atomic<int64_t> since_{0};
  std::atomic<bool> worker_{false};
  std::atomic<bool> ended_{false};
  std::atomic<int> used_{0};    // open communicators
  std::atomic<int> unused_{0};  // open communicators that it created and no thread has used
  mutable std::mutex mutex_;
  std::vector<Wait> waits_;
};

// Starts a thread of the engine, which counts as running from now on.
template <typename Body>
void start_worker(Body body) {
  start_thread([worker = WaitingThread::make_worker(), body = std::move(body)]() mutable {
    WaitingThread::adopt(std::move(worker));
    body();
  });
}

// A sleep of this thread, from construction to destruction.
class Sleeping {
 public:
  explicit Sleeping(const Wait& wait) { WaitingThread::current().sleep({&wait, 1}); }
  Sleeping(const Sleeping&) = delete;
  Sleeping& operator=(const Sleeping&) = delete;
  ~Sleeping() { WaitingThread::current().wake(); }
};

// Sleeps until other threads of this process have met the condition. Throws if the user interrupts
// the sleep.
void sleep_in_process(const WaitCondition& condition);

}  // namespace hostnccl
