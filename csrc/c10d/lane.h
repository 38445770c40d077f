// Lane: the operations of one communicator, in issue order. Asynchronous operations run on a thread
// of the lane for CPUs, and on a stream of the lane for other devices.
#pragma once

#include <functional>
#include <memory>

#include "connection.h"
#include "hooks.h"
#include "work.h"

namespace pynccl::dist {

class Lane {
 public:
  Lane(std::shared_ptr<Connection> connection, std::shared_ptr<Hooks> hooks)
      : connection_(std::move(connection)), hooks_(std::move(hooks)) {
    hooks_->watch(connection_);
  }
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // A synchronous operation is ordered with the device's current stream; on a CPU it is complete
  // when issue() returns.
  virtual c10::intrusive_ptr<PyncclWork> issue(Operation operation, int rank,
                                               std::chrono::milliseconds timeout) = 0;
  // Returns a completed work for an operation that is not issued.
  virtual c10::intrusive_ptr<PyncclWork> work_without_issue(Operation operation, int rank,
                                                            std::chrono::milliseconds timeout) = 0;
  // Calls body, which uses the communicator, on this thread and ordered with issued operations.
  virtual void run(const std::function<void()>& body) = 0;
  // Waits for pending operations; returns false on timeout.
  virtual bool drain(std::chrono::milliseconds timeout) = 0;
  // Frees resources after the communicator has ended. Further operations still fail.
  virtual void retire() {}

  Connection& connection() { return *connection_; }

 protected:
  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<Hooks> hooks_;
};

std::unique_ptr<Lane> make_host_lane(std::shared_ptr<Connection> connection,
                                     std::shared_ptr<Hooks> hooks);
// Called at finalization of the interpreter: waits for the threads of lanes to finish. After a time
// limit, calls cancel, which ends pending connections, and aborts the communicators of lanes that
// are still running. Call without the GIL.
void leave_host_lanes(const std::function<void()>& cancel);
std::unique_ptr<Lane> make_device_lane(std::shared_ptr<Connection> connection,
                                       std::shared_ptr<Hooks> hooks, bool high_priority);

}  // namespace pynccl::dist
