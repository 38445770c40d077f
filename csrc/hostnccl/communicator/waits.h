// The waits of this process's threads that sleep in the engine, for the errors of revocations and
// for the detection of deadlocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hostnccl/base/error.h"
#include "hostnccl/base/flag.h"
#include "hostnccl/base/process.h"
#include "hostnccl/base/thread.h"
#include "hostnccl/communicator/operation.h"
#include "hostnccl/segment/segment.h"

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

// Detects ranks that wait for each other forever, across several communicators, messages
// and streams.
//
// If all threads of a process that use communicators sleep, only the ranks that they wait for can
// wake it. The process publishes these waits, with the time, in the RankStates of its ranks. A set
// of processes is deadlocked if all of them slept at one moment, and each thread waited for a
// process of the set. Nothing is published or read unless a thread sleeps for long.
//
// Processes relay the waits of others, because two processes of a deadlock may share no
// communicator. A process that has failed publishes its failure instead, and the errors of
// processes that wait for it name the reason.
class Deadlocks {
 public:
  // Publishes the waits of this process in the segment, as those of this rank, until remove().
  static void add(std::shared_ptr<Segment> segment, int rank);
  static void remove(const Segment& segment, int rank);

  // Called occasionally by a sleeping thread. Returns the deadlock of which it is part, as an
  // error.
  static std::optional<Error> check();

  // Called when an operation of the communicator with this segment and label has failed. If the
  // error is a deadlock, the ranks that wait for this process in other communicators get it as
  // well: they cannot detect the deadlock once this process continues.
  static void note_failure(const Segment& segment, int rank, const std::string& label,
                           const Error& error);

  // The waits or failures of the processes, and of those for which they wait, for the error of a
  // rank that waits for them. May be empty.
  static std::string reasons(const std::vector<ProcessId>& processes);
  static std::string reasons_of_this_process();
};

}  // namespace hostnccl
