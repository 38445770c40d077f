// What this thread has called since its ncclGroupStart, and how it is started: communicators to be
// made each in a thread of their own, operations in launches, one for each set of communicators
// that share streams.
#pragma once

#include <optional>
#include <vector>

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/communicator/job.h"
#include "hostnccl/operations/progress_engine.h"
#include "hostnccl/streams/event.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

// An operation on its stream; none: the calling thread.
struct Item {
  Ref<Communicator> comm;
  Operation operation;
  Ref<Stream> stream;
  Ref<Event> launched;  // recorded when the operation begins
  Ref<Window> window;   // that a put writes to
};

class Group {
 public:
  static Group& of_this_thread();

  bool active() const { return depth_ != 0; }
  void start() { ++depth_; }
  abi::ncclResult_t end();
  // Ends it without starting anything. The microseconds that the outermost group would take; none
  // for an inner one and for an empty one.
  std::optional<double> end_simulated();
  void note_failure(const Error& error);
  bool uses(const Ref<Communicator>& comm) const;

  // Started at once outside of a group, else at its end.
  abi::ncclResult_t submit(Item&& item);
  abi::ncclResult_t submit(Job job);

 private:
  void leave(const char* function);
  [[noreturn]] void give_up();
  void clear();
  void check() const;
  void check_messages_to_self() const;
  void check_events() const;
  abi::ncclResult_t start_all();

  int depth_ = 0;
  std::optional<Error> failure_;
  std::vector<Item> items_;
  std::vector<Job> jobs_;
  ProgressEngine launch_;  // of what runs in this thread; kept for its memory
};

}  // namespace hostnccl
