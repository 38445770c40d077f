// The operations of one group, or a single one, run together by one thread.
//
// The collectives of a communicator run one after the other; its messages with each peer likewise
// and beside them, its puts and signals to each peer, its waits for signals: each such sequence is
// a strand. The thread goes round the strands, resuming those whose word has arrived; when none has
// it spins, yields, then sleeps on exactly those words.
// Because all strands progress together, no order of operations within a group can deadlock.
#pragma once

#include <optional>
#include <vector>

#include "hostnccl/communicator.h"
#include "hostnccl/operation.h"
#include "hostnccl/task.h"

namespace hostnccl {

class Launch {
 public:
  // window: that a put writes to, which stays until it has.
  void add(const Ref<Communicator>& comm, const Operation& operation,
           const Ref<Window>& window = {});

  // In the order in which launches are issued, each communicator's part gets its turn.
  void take_tickets();
  void use_ticket(uint32_t ticket) { parts_.front().ticket = ticket; }  // taken before

  // Runs everything to its end. The error of a communicator ends its part only; the first is
  // returned.
  std::optional<Error> run();

  void clear();  // keeps its memory

 private:
  // What one communicator does in this launch.
  struct Part {
    Ref<Communicator> comm;
    uint32_t ticket = 0;
    size_t unfinished = 0;  // strands
    bool begun = false;
    bool failed = false;
  };
  struct Step {
    Step(size_t its_part, int64_t its_strand, const Operation& its_operation)
        : part(its_part), strand(its_strand), operation(its_operation) {}
    size_t part;
    int64_t strand;
    Operation operation;
  };
  struct Strand {
    size_t part = 0;
    size_t next = 0;  // steps [next, end) are still to be started
    size_t end = 0;
    bool finished = false;
    Task task;
    Blocked blocked;
  };

  void make_strands();
  bool advance_all();
  void advance(Strand& strand);
  void finish(Strand& strand);
  void fail_part(size_t part, const Error& error);
  void sleep();
  void check_all(bool look_for_life);

  std::vector<Part> parts_;
  std::vector<Step> steps_;
  std::vector<Strand> strands_;
  std::vector<Wanted> wanted_;
  std::vector<Ref<Window>> windows_;
  size_t unfinished_ = 0;
  std::optional<Error> error_;
};

}  // namespace hostnccl
