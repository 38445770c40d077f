// Connection: a communicator created by Python on first use, and how operations are issued on it.
// Connector: the Python object that creates communicators.
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

// A DistBackendError: the operation exceeded its time limit.
struct TimeLimitError : c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

// Identifies a communicator: the group's, or that of one direction between two of its ranks.
struct Route {
  at::Device device;
  int peer = -1;  // negative: the group's communicator
  bool sends = false;

  bool is_pair() const { return peer >= 0; }
};

class Connection {
 public:
  // connector.connect(device, peer, sends) creates the communicator.
  Connection(Held connector, Route route) : connector_(std::move(connector)), route_(route) {}

  // Sets this thread's relaxed capture mode for a scope. In other modes, querying an event or
  // stream invalidates a graph capture on another thread.
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

  // Traces a wait for an operation.
  class Wait {
   public:
    Wait(const Connection* connection, void* stream);  // null: not traced
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
  // The id of the capture that a stream of the device takes part in, 0 if none.
  std::uint64_t capture_of(const c10::Stream& stream) const;
  // The sequence number of the last operation that issue() enqueued on this thread, 0 if unknown.
  unsigned long long last_operation() const { return connected() ? ref_.last_operation() : 0; }

  const at::Device& device() const { return route_.device; }
  // Returns the communicator. The first call creates it, waiting for the other ranks. Throws
  // DistBackendError. Call without the GIL.
  CommunicatorRef& get();
  // Takes ownership of an existing communicator. Requires the GIL.
  void adopt(py::object communicator);
  bool is_pair() const { return route_.is_pair(); }
  bool connected() const { return connected_.load(std::memory_order_acquire); }
  // Returns the pynccl.nccl.Communicator, null if not created yet. Requires the GIL.
  py::object communicator() const;

  // Issues the operation on a stream of the device's library. Throws DistBackendError.
  void issue(Operation& operation, void* stream);

  // Why issued operations cannot succeed, or "" if no failure is known. Callable from any thread.
  std::string failure() const;
  // Whether the communicator has failed without give_up(). Callable from any thread.
  bool failed() const { return !given_up_ && !failure_of_communicator().empty(); }
  // Called when the group abandons the communicator, whose errors then do not count as failures.
  void give_up() { given_up_ = true; }
  // Like failed(), but true only once.
  bool take_failure() { return failed() && !failure_taken_.exchange(true); }

  // Frees the communicator, by connector.close() if its operations are done, else by
  // connector.abort(). Afterwards get() throws with the reason. Call without the GIL.
  void end(bool done, const std::string& reason);

 private:
  void check_open();
  std::string failure_of_communicator() const;
  static void issue_calls(CommunicatorRef& comm, const Operation& operation);
  void issue_with_factors(CommunicatorRef& comm, Operation& operation);

  const Held connector_;
  const Route route_;
  std::atomic<bool> connected_ = false;
  std::atomic<bool> ended_ = false;
  std::atomic<bool> failure_taken_ = false;
  std::atomic<bool> given_up_ = false;
  std::mutex connecting_;
  mutable std::mutex mutex_;  // guards the following
  std::string reason_;        // why it was ended
  bool aborted_ = false;      // with operations pending
  Held communicator_;
  CommunicatorRef ref_;
  abi::functions::cuStreamGetCaptureInfo* capture_info_ = nullptr;  // none on CPUs
};

}  // namespace pynccl::dist
