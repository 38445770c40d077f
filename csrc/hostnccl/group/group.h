// Group: the group of a thread, with the operations and jobs called between ncclGroupStart and
// ncclGroupEnd. The outermost ncclGroupEnd starts first the jobs (several blocking ones in a thread
// each, a single one in this thread), then the operations. Outside a group, calls
// start immediately.
#pragma once

#include <optional>
#include <vector>

#include "hostnccl/communicator/job.h"
#include "hostnccl/operations/progress_engine.h"
#include "hostnccl/streams/event.h"

namespace hostnccl {

// An operation of a group, or a single one, with checked arguments, before it is started.
struct PendingOperation {
  Ref<Communicator> comm;
  Operation operation;
  Ref<Stream> stream;       // null: the calling thread
  Ref<Event> launch_event;  // recorded when the operation begins (launchCompletionEvent), or null
  Ref<Window> window;       // the destination of a put, else null
};

class Group {
 public:
  static Group& current();

  bool active() const { return depth_ != 0; }
  void start() { ++depth_; }
  abi::ncclResult_t end();
  // Ends the group without starting anything. Returns the estimated time of the operations in
  // microseconds. Empty for a nested group and for a group without operations.
  std::optional<double> end_simulated();
  void set_error(const Error& error);  // of a call in the group. Later errors are ignored
  bool uses(const Ref<Communicator>& comm) const;

  // Outside a group, starts the operation or job. Otherwise adds it to the group.
  abi::ncclResult_t submit(PendingOperation&& operation);
  abi::ncclResult_t submit(Job job);

 private:
  void exit_level(const char* function);
  void check_alike(const Job& job) const;
  [[noreturn]] void cancel_and_rethrow();
  void clear();
  void check() const;
  void check_messages_to_self() const;
  void check_launch_events() const;
  abi::ncclResult_t start_all(const std::vector<PendingOperation>& operations);
  template <typename Operations>
  void dispatch_all(const Operations& operations);

  WaitingThread& thread_ = WaitingThread::current();
  int depth_ = 0;
  std::optional<Error> error_;
  std::vector<PendingOperation> operations_;
  std::vector<Job> jobs_;
  bool dispatching_ = false;
  ProgressEngine inline_engine_;  // for operations of the calling thread, reused for its memory
};

}  // namespace hostnccl
