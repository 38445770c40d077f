// CommState: the state of a communicator as its user sees it: phase, abort, revocation, suspension
// and the first error.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "hostnccl/base/error.h"
#include "hostnccl/base/process.h"
#include "hostnccl/base/task.h"
#include "hostnccl/communicator/operation_state.h"
#include "hostnccl/rendezvous/rendezvous.h"
#include "hostnccl/segment/comm_settings.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

class CommState {
 public:
  // The call that revoked the communicator: ncclCommRevoke, or ncclCommShrink with
  // NCCL_SHRINK_ABORT.
  enum class RevokedBy { Revoke, Shrink };

  CommState(const CommSettings& settings, const OperationOrder& order, Creation& creation)
      : settings_(settings), order_(order), creation_(creation) {}

  // Checks for the C API. Each throws the caller's error unless the communicator
  void check_not_forked() const;       // was created in this process
  void check_initialized() const;      // has a rank and a size
  void check_usable() const;           // can run an operation
  void check_parent() const;           // can be split, shrunk or grown, like a revoked one
  void check_not_in_progress() const;  // is idle, if it is non-blocking. In strict mode only

  bool of_this_process() const { return generation_ == fork_generation(); }
  bool initializing() const { return phase_ == Phase::Initializing; }
  bool finalized() const { return phase_ == Phase::Finalizing || phase_ == Phase::Finalized; }
  // Sequentially consistent: an operation that begins either sees the abort or revocation, or is
  // seen by wait_until_idle().
  bool aborted() const { return aborted_.load(std::memory_order_seq_cst); }
  bool revoked() const { return revoked_.load(std::memory_order_seq_cst); }
  bool suspended() const { return suspended_.load(std::memory_order_acquire); }
  // Whether no further operation may begin. For initialized communicators.
  bool stopped() const {
    return aborted() || revoked() || error_code_ != abi::ncclSuccess || segment_->failed();
  }

  abi::ncclResult_t async_error() const;
  std::optional<Error> failure() const;           // the error that async_error() reports
  std::optional<std::string> error_text() const;  // of ncclGetLastError
  Error error() const;                            // requires that there is an error
  // The error of an operation: a failure, even if the communicator was revoked afterwards.
  Error operation_error() const;
  // Records the first error of this rank and fails the segment, which ends the operations of all
  // ranks.
  void fail(const Error& error) noexcept;

  // Records the refusal of a call on a non-blocking communicator as its error, on this rank only.
  void refuse(const Error& error) noexcept;

  // In strict mode, an operation of a non-blocking communicator is in progress when the call
  // returns, until the state is queried. A blocking communicator in a group with such operations is
  // in progress from then on.
  void begin_issuing(bool permanently) {
    issuing_ = permanently ? Issuing::Permanently : Issuing::UntilQueried;
  }
  bool issuing() const { return issuing_.load(std::memory_order_acquire) != Issuing::None; }
  void end_issuing() noexcept {  // the state was queried
    Issuing until_queried = Issuing::UntilQueried;
    issuing_.compare_exchange_strong(until_queried, Issuing::None);
  }

  // The jobs of a non-blocking communicator during which its state is ncclInProgress: a suspension
  // or resumption, the creation of a child, the registration of a window.
  enum class Activity { Suspension, Child, Registration };
  void begin(Activity what) { counter(what).fetch_add(1, std::memory_order_acq_rel); }
  void end(Activity what) { counter(what).fetch_sub(1, std::memory_order_acq_rel); }

  // Throws if the awaited rank can no longer signal: after an abort, a revocation or a failure of
  // the segment, and if the rank has left or, with check_liveness, its process died.
  void check_wait(const Blocked& blocked, bool check_liveness) const;

  void start_initializing(std::shared_ptr<Rendezvous> rendezvous);
  void finish_initializing(Segment& segment, int rank);
  void start_finalizing();
  void finish_finalizing();  // throws the communicator's error if it has one

  // Why a rank ends operations, for error texts.
  struct Reason {
    std::string waiting;  // "waited for ranks 1 and 3 in ncclAllReduce(...)"; may be empty
    std::string cause;    // what prevents the awaited ranks from continuing; may be empty

    std::string text(const std::string& before_waiting) const {
      return (waiting.empty() ? "" : before_waiting + waiting) +
             (cause.empty() ? "" : "; " + cause);
    }
  };
  // Releases the blocked threads of this rank. Its unfinished operations fail on the other ranks.
  void abort(const std::string& cause);
  // Afterwards no operation runs on this rank. Its unfinished operations fail on all ranks. The
  // communicator can still be split and shrunk, even if ranks are dead.
  void revoke(RevokedBy by, const Reason& reason);
  // The error of an operation of this rank, as reported to the other ranks.
  Error for_others(const Error& error) const;

  void set_suspended(bool suspended) { suspended_.store(suspended, std::memory_order_release); }

 private:
  enum class Phase { Initializing, Ready, Finalizing, Finalized };
  enum class Issuing { None, UntilQueried, Permanently };

  Error error_locked(bool failed_first) const;

  void check_healthy() const;
  std::atomic<int>& counter(Activity what) { return activities_[static_cast<size_t>(what)]; }
  bool busy_with(Activity what) const {
    return activities_[static_cast<size_t>(what)].load(std::memory_order_acquire) != 0;
  }
  // The errors of this rank, and those reported to the other ranks.
  Error revocation() const;
  Error revocation_for_others() const;
  Error abort_for_others() const;

  const CommSettings& settings_;
  const OperationOrder& order_;
  Creation& creation_;
  const uint32_t generation_ = fork_generation();
  int rank_ = -1;
  Segment* segment_ = nullptr;  // null until initialized

  std::atomic<Phase> phase_{Phase::Initializing};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> revoked_{false};
  std::atomic<bool> suspended_{false};
  std::atomic<int> activities_[3]{};  // how many run, by Activity
  std::atomic<Issuing> issuing_{Issuing::None};
  std::atomic<abi::ncclResult_t> error_code_{abi::ncclSuccess};

  mutable std::mutex mutex_;  // guards the fields below and the transitions
  std::string error_text_;
  RevokedBy revoked_by_ = RevokedBy::Revoke;  // once revoked
  Reason reason_;                             // once revoked or aborted
  std::shared_ptr<Rendezvous> rendezvous_;    // while initializing
};

}  // namespace hostnccl
