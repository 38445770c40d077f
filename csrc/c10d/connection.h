// Connection: a communicator that Python makes when it is first needed, and the issue of operations
// on it. Connector: the Python object that makes communicators.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "interpreter.h"
#include "operation.h"

namespace pynccl::dist {

inline double seconds(std::chrono::milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

// A DistBackendError: the operation took longer than its time limit.
struct TimeLimitError : c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

// Which communicator: of the group, or of one direction between two ranks of it.
struct Route {
  at::Device device;
  int peer = -1;  // below 0: of the group
  bool sends = false;
};

class Connection {
 public:
  // connector.connect(device, peer, sends) makes the communicator.
  Connection(Held connector, Route route) : connector_(std::move(connector)), route_(route) {}

  // The relaxed capture mode of this thread for the length of a scope. In another mode the query of
  // an event or stream invalidates the capture of a graph on another thread.
  class RelaxedCapture {
   public:
    explicit RelaxedCapture(const Connection& connection);
    ~RelaxedCapture() { exchange(); }
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

   private:
    void exchange() {
      if (exchange_) exchange_(&mode_);
    }

    abi::functions::cuThreadExchangeStreamCaptureMode* exchange_ = nullptr;
    abi::CUstreamCaptureMode mode_ = abi::CU_STREAM_CAPTURE_MODE_RELAXED;
  };

  // A wait for an operation, in traces.
  class Wait {
   public:
    Wait(const Connection* connection, void* stream);  // null: nothing is traced
    ~Wait() {
      if (wait_) connection_->ref_.end_wait(wait_, sequence_);
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

    void of(unsigned long long sequence) { sequence_ = sequence; }

   private:
    const Connection* const connection_;
    void* wait_ = nullptr;
    unsigned long long sequence_ = 0;
  };
  // Of the last operation that issue() has enqueued on this thread; 0 where it is not known.
  unsigned long long last_operation() const { return made() ? ref_.last_operation() : 0; }

  const at::Device& device() const { return route_.device; }
  // The communicator, which the first call makes; that waits for the other ranks. Throws
  // DistBackendError. Call it without the GIL.
  CommunicatorRef& get();
  // Takes over a communicator that was made elsewhere. Needs the GIL.
  void adopt(py::object communicator);
  bool of_group() const { return route_.peer < 0; }
  bool made() const { return made_.load(std::memory_order_acquire); }
  // The pynccl.nccl.Communicator, null where it is not made. Needs the GIL.
  py::object communicator() const;

  // Issues the operation on a stream of the device's library. Throws DistBackendError.
  void issue(Operation& operation, void* stream);

  // Why operations that were issued cannot succeed; "" where nothing is known. From any thread.
  std::string failure() const;
  // Whether the communicator has failed by itself. From any thread.
  bool failed() const { return !given_up_ && !failure_of_communicator().empty(); }
  // The group gives the communicator up: that is no failure.
  void give_up() { given_up_ = true; }
  // The same, but true only once.
  bool take_failure() { return failed() && !failure_taken_.exchange(true); }

  // Frees the communicator: by connector.close(), where what was issued is done, else by
  // connector.abort(). From then on get() throws with the reason. Call it without the GIL.
  void end(bool done, const std::string& reason);

 private:
  void check_open();
  std::string failure_of_communicator() const;
  static void issue_calls(CommunicatorRef& comm, const Operation& operation);
  void issue_with_factors(CommunicatorRef& comm, Operation& operation);

  const Held connector_;
  const Route route_;
  std::atomic<bool> made_ = false;
  std::atomic<bool> ended_ = false;
  std::atomic<bool> failure_taken_ = false;
  std::atomic<bool> given_up_ = false;
  std::mutex making_;
  mutable std::mutex mutex_;  // of the following
  std::string reason_;        // why it was ended
  bool aborted_ = false;      // before what was issued was done
  Held communicator_;
  CommunicatorRef ref_;
};

}  // namespace pynccl::dist
