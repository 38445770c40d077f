// Lane: the operations of one communicator, in the order in which they were issued. On a CPU
// asynchronous ones run on a thread of the lane, on another device on a stream of it.
#pragma once

#include <functional>
#include <memory>

#include "connection.h"
#include "hooks.h"

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

  // A synchronous operation is ordered with the work on the current stream of the device: on a CPU
  // it is done when issue() returns.
  virtual c10::intrusive_ptr<c10d::Work> issue(Operation operation, int rank,
                                               std::chrono::milliseconds timeout) = 0;
  // The work of an operation that is not issued: it is done.
  virtual c10::intrusive_ptr<c10d::Work> work_without_issue(Operation operation, int rank,
                                                            std::chrono::milliseconds timeout) = 0;
  // Calls body on this thread, in order with the issue of operations: it uses the communicator.
  virtual void run(const std::function<void()>& body) = 0;
  // Waits until what was issued is done; false where that takes longer.
  virtual bool drain(std::chrono::milliseconds timeout) = 0;
  // Its communicator has ended: frees what is not needed for that. What is issued still fails.
  virtual void retire() {}

  Connection& connection() { return *connection_; }

 protected:
  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<Hooks> hooks_;
};

std::unique_ptr<Lane> make_host_lane(std::shared_ptr<Connection> connection,
                                     std::shared_ptr<Hooks> hooks);
// When the interpreter ends: lets the threads of lanes finish what they have to do, else calls
// cancel, which ends what waits to connect, and aborts the others. Call it without the GIL.
void leave_host_lanes(const std::function<void()>& cancel);
std::unique_ptr<Lane> make_device_lane(std::shared_ptr<Connection> connection,
                                       std::shared_ptr<Hooks> hooks, bool high_priority);

}  // namespace pynccl::dist
