// The group of a thread: the operations and jobs called between ncclGroupStart and ncclGroupEnd.
// The outermost ncclGroupEnd starts them: first the jobs (several blocking ones each in a thread, a
// single one in this thread), then the operations (dispatch.h). Outside a group a call is started
// immediately.
#pragma once

#include <optional>
#include <vector>

#include "hostnccl/communicator/job.h"
#include "hostnccl/group/pending_operation.h"
#include "hostnccl/operations/progress_engine.h"

namespace hostnccl {

class Group {
 public:
  static Group& of_this_thread();

  bool active() const { return depth_ != 0; }
  void start() { ++depth_; }
  abi::ncclResult_t end();
  // Ends the group without starting anything. Returns the estimated time of the operations in
  // microseconds, or nothing for a nested group and for a group without operations.
  std::optional<double> end_simulated();
  void set_error(const Error& error);  // of a call in the group; the first one stays
  bool uses(const Ref<Communicator>& comm) const;

  // Starts the operation or job immediately outside a group, else adds it to the group.
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
  abi::ncclResult_t start_all();

  WaitingThread& thread_ = WaitingThread::current();
  int depth_ = 0;
  std::optional<Error> error_;
  std::vector<PendingOperation> operations_;
  std::vector<Job> jobs_;
  ProgressEngine inline_engine_;  // for operations of the calling thread; reused for its memory
};

}  // namespace hostnccl
