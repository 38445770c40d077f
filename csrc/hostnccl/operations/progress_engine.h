// The operations of one group, or a single one, run together by one thread.
//
// The collectives of a communicator run one after the other; its messages with each peer likewise
// and beside them, its puts and signals to each peer, its waits for signals: each such sequence is
// a queue. The thread goes round the queues, resuming those whose word has arrived; when none has
// it spins, yields, then sleeps on exactly those words.
// Because all queues progress together, no order of operations within a group can deadlock.
#pragma once

#include <optional>
#include <vector>

#include "hostnccl/base/task.h"
#include "hostnccl/communicator/communicator.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class ProgressEngine {
 public:
  // window: that a put writes to, which stays until it has.
  void add(const Ref<Communicator>& comm, const Operation& operation,
           const Ref<Window>& window = {});

  // In the order in which launches are issued, each communicator's part gets its turn.
  void take_tickets();
  void use_sequence(uint32_t sequence) { parts_.front().sequence = sequence; }  // taken before

  // Runs everything to its end. The error of a communicator ends its part only; the first is
  // returned.
  std::optional<Error> run();

  void clear();  // keeps its memory

 private:
  // What one communicator does in this launch.
  struct Part {
    Ref<Communicator> comm;
    uint32_t sequence = 0;
    size_t unfinished = 0;  // queues
    bool begun = false;
    bool failed = false;
  };
  struct Step {
    Step(size_t its_part, int64_t its_queue, const Operation& its_operation)
        : part(its_part), queue(its_queue), operation(its_operation) {}
    size_t part;
    int64_t queue;
    Operation operation;
  };
  struct PeerQueue {
    size_t part = 0;
    size_t next = 0;  // steps [next, end) are still to be started
    size_t end = 0;
    bool finished = false;
    Task task;
    Blocked blocked;
  };

  void make_queues();
  bool advance_all();
  void advance(PeerQueue& queue);
  void finish(PeerQueue& queue);
  void fail_part(size_t part, const Error& error);
  void sleep();
  void check_all(bool look_for_life);

  std::vector<Part> parts_;
  std::vector<Step> steps_;
  std::vector<PeerQueue> queues_;
  std::vector<WaitCondition> conditions_;
  std::vector<Ref<Window>> windows_;
  size_t unfinished_ = 0;
  std::optional<Error> error_;
};

}  // namespace hostnccl
