#include "hostnccl/communicator/comm_state.h"

namespace hostnccl {

void CommState::check_not_forked() const {
  if (of_this_process()) return;
  hostnccl::fail(abi::ncclInvalidUsage,
                 "comm was created before this process was forked: a child must create its own "
                 "communicators");
}

void CommState::check_initialized() const {
  check_not_forked();
  if (phase_.load(std::memory_order_acquire) != Phase::Initializing) return;
  if (error_code_ != abi::ncclSuccess) throw error();
  hostnccl::fail(
      abi::ncclInvalidArgument,
      "comm is not initialized yet: wait until ncclCommGetAsyncError returns ncclSuccess");
}

void CommState::check_healthy() const {
  if (busy_with(Activity::Suspension)) {
    hostnccl::fail(abi::ncclInvalidArgument,
                   "comm is being suspended or resumed: wait until ncclCommGetAsyncError returns "
                   "ncclSuccess");
  }
  if (error_code_.load(std::memory_order_acquire) != abi::ncclSuccess || segment_->failed()) {
    throw error();
  }
  check_not_in_progress();
  if (phase_.load(std::memory_order_acquire) != Phase::Ready) {
    hostnccl::fail(abi::ncclInvalidUsage, "comm was finalized by ncclCommFinalize");
  }
}

void CommState::check_not_in_progress() const {
  if (!issuing() && !busy_with(Activity::Child)) return;
  hostnccl::fail(abi::ncclInvalidArgument,
                 "a call on comm is in progress: wait until ncclCommGetAsyncError returns "
                 "ncclSuccess");
}

void CommState::check_usable() const {
  const bool usable = of_this_process() && phase_ == Phase::Ready && !revoked() &&
                      !busy_with(Activity::Suspension) && !busy_with(Activity::Child) &&
                      !issuing() && error_code_ == abi::ncclSuccess && !suspended() &&
                      !segment_->failed();
  if (usable) [[likely]]
    return;
  check_initialized();
  if (revoked()) throw error();
  check_healthy();
  if (suspended()) {
    hostnccl::fail(abi::ncclInvalidUsage,
                   "comm is suspended by ncclCommSuspend: ncclCommResume makes it usable again");
  }
}

void CommState::check_parent() const {
  check_initialized();
  if (!revoked()) check_healthy();
}

abi::ncclResult_t CommState::async_error() const {
  if (revoked()) return order_.running() ? abi::ncclInProgress : abi::ncclSuccess;
  const abi::ncclResult_t code = error_code_.load(std::memory_order_acquire);
  if (code != abi::ncclSuccess) return code;
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase == Phase::Initializing) return abi::ncclInProgress;
  if (segment_->failed()) return error().code();
  const bool busy = phase == Phase::Finalizing || issuing() || busy_with(Activity::Suspension) ||
                    busy_with(Activity::Child) || busy_with(Activity::Registration);
  return busy ? abi::ncclInProgress : abi::ncclSuccess;
}

std::optional<std::string> CommState::error_text() const {
  const abi::ncclResult_t code = async_error();
  if (code == abi::ncclInProgress && !revoked()) {
    const std::lock_guard lock(mutex_);
    const Phase phase = phase_;
    std::string text = phase == Phase::Initializing      ? "initialization"
                       : phase == Phase::Finalizing      ? "finalization"
                       : busy_with(Activity::Suspension) ? "suspension or resumption"
                       : issuing()                       ? "an operation"
                       : busy_with(Activity::Child)      ? "creation of a child"
                                                         : "registration of a window";
    text += " in progress";
    if (rendezvous_ != nullptr) text += ": " + rendezvous_->progress();
    return text;
  }
  if (code != abi::ncclSuccess) return error().text();
  return std::nullopt;
}

Error CommState::operation_error() const {
  const std::lock_guard lock(mutex_);
  return error_locked(error_code_ != abi::ncclSuccess);
}

Error CommState::error() const {
  const std::lock_guard lock(mutex_);
  return error_locked(false);
}

Error CommState::error_locked(bool failed_first) const {
  const std::string label = settings_.name.empty() ? "" : "communicator " + settings_.name + ": ";
  if (revoked() && !failed_first) return Error(revocation().code(), label + revocation().text());
  if (error_code_ != abi::ncclSuccess) return Error(error_code_, label + error_text_);
  const Error failure = segment_->failure();
  return Error(failure.code(), label + failure.text());
}

void CommState::fail(const Error& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (revoked()) {  // the revocation ended the operation, and is not an error of comm
    segment_->fail(revocation_for_others());
    return;
  }
  if (error_code_ == abi::ncclSuccess) {
    error_text_ = error.text();
    error_code_ = error.code();
  }
  // aborted_: the abort came when the operation was about to begin.
  if (segment_ != nullptr) segment_->fail(aborted_ ? abort_for_others() : error);
}

void CommState::refuse(const Error& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (revoked() || error_code_ != abi::ncclSuccess) return;
  error_text_ = error.text();
  error_code_ = error.code();
}

void CommState::check_wait(const Blocked& blocked, bool check_liveness) const {
  if (aborted() || revoked()) throw error();
  segment_->check_owner(blocked.owner, blocked.condition, check_liveness);
}

void CommState::start_initializing(std::shared_ptr<Rendezvous> rendezvous) {
  const std::lock_guard lock(mutex_);
  rendezvous_ = std::move(rendezvous);
}

void CommState::finish_initializing(Segment& segment, int rank) {
  const std::lock_guard lock(mutex_);
  rendezvous_.reset();
  rank_ = rank;
  segment_ = &segment;
  phase_ = Phase::Ready;
}

void CommState::start_finalizing() {
  Phase ready = Phase::Ready;
  if (!phase_.compare_exchange_strong(ready, Phase::Finalizing)) {
    hostnccl::fail(abi::ncclInvalidUsage,
                   "ncclCommFinalize has already been called on this communicator");
  }
}

std::optional<Error> CommState::failure() const {
  const abi::ncclResult_t code = async_error();
  if (code == abi::ncclSuccess || code == abi::ncclInProgress) return std::nullopt;
  return error();
}

void CommState::finish_finalizing() {
  if (const std::optional<Error> error = failure()) throw *error;
  phase_ = Phase::Finalized;
}

void CommState::abort(const std::string& cause) {
  const std::lock_guard lock(mutex_);
  if (!revoked()) reason_ = {"", cause};
  if (error_code_ == abi::ncclSuccess) {
    error_text_ = "the communicator was aborted by ncclCommAbort";
    error_code_ = abi::ncclInvalidUsage;  // from now on no operation begins
  }
  // Before aborted_, which releases this rank's threads: the first error in the segment must name
  // this rank.
  if (segment_ != nullptr && order_.in_flight()) segment_->fail(abort_for_others());
  aborted_ = true;
  creation_.end(Creation::End::Aborted);
}

void CommState::revoke(RevokedBy by, const Reason& reason) {
  const std::lock_guard lock(mutex_);
  if (revoked()) return;
  revoked_by_ = by;
  reason_ = reason;
  // Before revoked_, which releases this rank's threads: the first error in the segment must name
  // this rank. Ranks that do not wait for this one continue.
  if (order_.in_flight()) segment_->fail(revocation_for_others());
  segment_->leave(rank_, by == RevokedBy::Revoke ? Presence::Revoked : Presence::Shrunk);
  issuing_ = Issuing::None;
  revoked_.store(true, std::memory_order_seq_cst);
}

Error CommState::revocation() const {
  const char* how = revoked_by_ == RevokedBy::Revoke
                        ? "comm was revoked by ncclCommRevoke"
                        : "the operations of comm were ended by ncclCommShrink with "
                          "NCCL_SHRINK_ABORT";
  return Error(abi::ncclInvalidUsage, std::string(how) +
                                          ": it can only be split, shrunk and destroyed" +
                                          reason_.text("; this rank "));
}

Error CommState::revocation_for_others() const {
  const char* how = revoked_by_ == RevokedBy::Revoke
                        ? " revoked its communicator"
                        : " ended all operations of its communicator to shrink it";
  return Error(abi::ncclRemoteError, segment_->name_of(rank_) + how + reason_.text(" while it "));
}

Error CommState::abort_for_others() const {
  return Error(abi::ncclRemoteError, segment_->name_of(rank_) +
                                         " aborted its communicator during an operation" +
                                         reason_.text(""));
}

Error CommState::for_others(const Error& error) const {
  const std::lock_guard lock(mutex_);
  if (revoked()) return revocation_for_others();
  return aborted_ ? abort_for_others() : error;
}

}  // namespace hostnccl
