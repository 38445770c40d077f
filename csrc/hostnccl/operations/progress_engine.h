// ProgressEngine: runs the operations of one group, or a single operation, in one thread.
//
// It sorts the operations of each communicator into queues:
//  - the collectives,
//  - per peer, the sends, the receives, and the puts and signals,
//  - the waits for signals.
// The operations of a queue run one after the other. All queues progress together, so no order of
// operations within a group can deadlock. In strict mode the one-sided operations run as in NCCL:
// those of a context one after the other, context by context, before all other operations of their
// communicator.
//
// The thread resumes the queues whose wait condition is met. If there are none, it spins, yields,
// and then sleeps on exactly those conditions.
#pragma once

#include <optional>
#include <vector>

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/communicator.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

// The operations as tasks.

// A collective. Every rank publishes its call, checks it against the calls of the others, and
// copies or reduces the data that it needs from them. Reductions run over rank 0, 1, 2, ... in this
// order on every rank and path, so all ranks and all runs get the same bits.
Task run_collective(Communicator& comm, const Operation& operation);

// Send and receive, over the PairRing from the sender to the receiver. The messages of a ring are
// matched in the order of the calls. alone: no other operation of the group can progress meanwhile.
Task run_send(Communicator& comm, const Operation& operation, bool alone);
Task run_recv(Communicator& comm, const Operation& operation);

// PutSignal and Signal. A put copies into the target's window from the calling thread, then signals
// a flag that counts the signals from this rank to the target. A signal is a put without data. The
// target takes no part until it waits for that flag.
Task run_put(Communicator& comm, const Operation& operation);
Task run_wait(Communicator& comm, const Operation& operation);

// One rank's part of a window registration. recv points to the Registration.
Task run_registration(Communicator& comm, const Operation& operation);

class ProgressEngine {
 public:
  // window: the target of a put. The engine holds it until the put is complete.
  void add(const Ref<Communicator>& comm, const Operation& operation,
           const Ref<Window>& window = {});

  // Allocates the memory for run(). Called after the last add().
  void prepare();
  // Takes one sequence number of each communicator. Engines run in the order of these numbers.
  void take_sequences() noexcept;
  // For a single communicator whose sequence number has been taken.
  void set_sequence(uint32_t sequence) { works_.front().sequence = sequence; }
  void add_orders(OperationOrders& orders) const;  // those of its communicators

  // Runs all operations to completion. An error ends only the operations of its communicator.
  // Returns the first error. creation: the creation to which the operations belong. They end if
  // this rank gives it up.
  std::optional<Error> run(const Creation* creation = nullptr);

  void clear();  // removes all operations, but keeps the allocated memory

 private:
  static constexpr size_t kNone = SIZE_MAX;

  // The work of one communicator in this engine.
  struct CommunicatorWork {
    Ref<Communicator> comm;
    uint32_t sequence = 0;
    size_t unfinished_queues = 0;
    bool begun = false;
    bool failed = false;
  };
  struct QueuedOperation {
    QueuedOperation(size_t its_work, int64_t its_queue, const Operation& its_operation)
        : work(its_work), queue(its_queue), operation(its_operation) {}
    size_t work;  // index in works_
    int64_t queue;
    Operation operation;
  };
  // The operations of one communicator that run one after the other.
  struct PeerQueue {
    size_t work = 0;  // index in works_
    size_t next = 0;  // operations_[next, end) have not started
    size_t end = 0;
    size_t after = kNone;  // the queue that must finish first
    bool finished = false;
    Task task;  // the running operation
    Blocked blocked;
  };

  // Whether an unfinished queue waits for its condition and not for another queue.
  bool waiting(const PeerQueue& queue) const {
    return !queue.finished && (queue.after == kNone || queues_[queue.after].finished);
  }
  bool advance_all();
  void advance(PeerQueue& queue);
  void finish(PeerQueue& queue);
  void fail_work(size_t work, const Error& error);
  void sleep();
  void end_if_given_up(const Creation* creation);
  void end_if_deadlocked();
  bool apart();
  void report_waits();
  void check_waits(bool check_liveness);
  void check_wait(const PeerQueue& queue, bool check_liveness) const;
  Error found_in(const PeerQueue& queue, const Error& error) const;

  std::vector<CommunicatorWork> works_;
  std::vector<QueuedOperation> operations_;
  std::vector<PeerQueue> queues_;
  std::vector<WaitCondition> conditions_;
  std::vector<Wait> waits_;
  std::vector<PutTarget> puts_;
  size_t unfinished_queues_ = 0;
  std::optional<Error> error_;
};

// Runs one operation, whose sequence number has been taken. Throws its error. The communicator
// fails even if the operation cannot begin, because the other ranks would wait for it.
void run_operation(const Ref<Communicator>& comm, const Operation& operation, uint32_t sequence,
                   const Creation* creation = nullptr);

}  // namespace hostnccl
