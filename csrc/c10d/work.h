// HostWork and DeviceWork: handles of asynchronous operations.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

#include "connection.h"
#include "hooks.h"
#include "lane_events.h"

namespace pynccl::dist {

// Throws the error of a timed-out wait.
[[noreturn]] void throw_timed_out(const char* name, int rank, std::chrono::milliseconds timeout);

// The common base class.
class PyncclWork : public c10d::Work {
 public:
  // Moves the outputs from the operation, and keeps its connection alive.
  PyncclWork(int rank, Operation& operation, std::chrono::milliseconds timeout,
             std::shared_ptr<Connection> connection)
      : Work(rank, operation.type, operation.title),
        name_(name_of(operation)),
        outputs_(std::move(operation.outputs)),
        number_(operation.number),
        source_(operation.type == c10d::OpType::RECV ? operation.peer : -1),
        timeout_(timeout),
        connection_(std::move(connection)) {}

  std::vector<at::Tensor> result() override { return outputs_; }
  std::uint64_t getSequencenumber() const override { return number_; }
  int sourceRank() const override { return source_ < 0 ? Work::sourceRank() : source_; }
  std::uint64_t completion_key() const { return key_; }
  // Whether it has completed, or was captured and so has no state of its own.
  virtual bool is_over() { return isCompleted(); }
#if PYNCCL_TORCH_SINCE(2, 14)
  std::chrono::milliseconds getTimeout() const override { return timeout_; }
#endif
#if PYNCCL_TORCH_SINCE(2, 15)
  std::uint64_t getCompletionKey() const override { return key_; }
#endif

 protected:
  void end_record();  // ends the profiler's record

  const char* const name_;
  const std::vector<at::Tensor> outputs_;
  const std::uint64_t number_;
  const int source_;                         // of a received message, else -1
  const std::chrono::milliseconds timeout_;  // the operation's, else the group's
  const std::uint64_t key_ = new_completion_key();
  const std::shared_ptr<Connection> connection_;  // null if nothing is issued
  unsigned long long sequence_ = 0;               // of its last operation, for traces
};

class HostWork;

// The pending operations of a lane, for the threads that wait for them.
class WorkQueue {
 public:
  // Runs the operations up to that of work on this thread, unless it has begun. If this thread
  // cannot run them, the thread of the lane does.
  virtual void run_until(const HostWork& work) = 0;
  // Lets the thread of the lane run the pending operations.
  virtual void start() = 0;
  // Whether this process is a forked child of the queue's process, and so lacks the lane's thread.
  bool is_forked() const { return forks_ != Forks::count(); }

 protected:
  ~WorkQueue() = default;

 private:
  const unsigned forks_ = Forks::count();
};

// An operation on CPU memory, run by the thread of a lane or by a thread that waits for it.
class HostWork final : public PyncclWork {
 public:
  using PyncclWork::PyncclWork;

  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void blockCurrentStream() override { wait(); }  // a CPU's current stream is the caller
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;  // in milliseconds

  std::optional<float> duration() const { return duration_; }  // for the thread that ran it
  bool has_future() const;
  void queued_in(std::weak_ptr<WorkQueue> queue) { queue_ = std::move(queue); }
  // Issues the operation, and measures its duration if it is timed.
  void run(Operation& operation);
  // Marks the operation as ended.
  void settle(std::exception_ptr error);

 private:
  using Mark = void (HostWork::*)(c10::ivalue::Future&) const;
  // Returns the future, created on the first call and completed when the operation has ended.
  c10::intrusive_ptr<c10::ivalue::Future> future(c10::intrusive_ptr<c10::ivalue::Future>& kept,
                                                 const c10::TypePtr& type, Mark mark);
  void mark(c10::ivalue::Future& future) const;
  void mark_result(c10::ivalue::Future& future) const;

  c10::intrusive_ptr<c10::ivalue::Future> future_;  // under mutex_
  c10::intrusive_ptr<c10::ivalue::Future> result_;  // under mutex_
  std::optional<float> duration_;
  std::weak_ptr<WorkQueue> queue_;  // none: a synchronous operation
};

// The events around a timed operation on a stream.
struct Times {
  c10::Event began, ended;
};

// An operation on a device stream.
class DeviceWork final : public PyncclWork {
 public:
  // stream: the stream of the operation; done: recorded after it, none if stream is the caller's
  // current stream. If the stream is being captured, the operation belongs to that capture.
  DeviceWork(int rank, Operation operation, std::chrono::milliseconds timeout,
             std::shared_ptr<Connection> connection, c10::Stream stream,
             std::optional<LaneEvent> done, std::optional<Times> times);
  ~DeviceWork() override;

  bool isCompleted() override;
  bool is_over() override { return capture_ != 0 || isCompleted(); }
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override;  // in milliseconds

 private:
  bool done() const;
  void check_not_captured() const;
  void check() const;  // throws if the communicator has failed
  // Throws if a stream cannot wait for the operation, because it was captured into a graph.
  void check_capture(const c10::Stream& waiting) const;
  void wait_on_host(std::chrono::milliseconds timeout);

  const c10::Stream stream_;
  const std::uint64_t capture_;  // 0: not captured
  const bool blocks_;
  std::optional<LaneEvent> done_;
  const std::optional<Times> times_;
  std::vector<at::Tensor> held_;  // until a caller's stream is ordered after it
};

}  // namespace pynccl::dist
