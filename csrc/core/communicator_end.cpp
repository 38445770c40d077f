// The end of a communicator: finalize, close, abort and revoke.
#include <algorithm>
#include <cstdio>

#include "abi/constants.h"
#include "core/communicator.h"
#include "core/failed_streams.h"
#include "core/fork_lock.h"
#include "core/interrupt.h"
#include "core/monitor.h"
#include "core/observer.h"
#include "core/poll.h"
#include "core/run_within.h"

namespace pynccl {
namespace {

constexpr double kEndCallsSeconds = 2;  // how long abort() waits for the calls of other threads
constexpr double kAbortSeconds = 5;     // and for ncclCommAbort
constexpr double kIssueSeconds = 0.1;   // how long an expiry waits for what is being issued

// ncclCommAbort waits without limit for the graphs that captured the communicator and for the ranks
// of this machine; after some seconds it continues on its thread.
ncclResult_t abort_bounded(const std::shared_ptr<Library>& library, ncclComm_t comm) {
  const auto result = std::make_shared<std::atomic<ncclResult_t>>(ncclSuccess);
  run_within(kAbortSeconds, [library, comm, result] {
    *result = library->nccl<&NcclTable::ncclCommAbort>()(comm);
  });
  return *result;
}

}  // namespace

void Communicator::finalize() {
  check_owned("finalize");
  check_ready();
  const Use comm(*this);
  const Waiting waiting(*this, "ncclCommFinalize");
  finalized_ = true;
  waiting.check(library_->nccl<&NcclTable::ncclCommFinalize>()(comm));
  note_in_progress();
  if (expired()) throw expiry("ncclCommFinalize");
}

void Communicator::close() {
  tell_observers(false);
  if (borrowed_) return forget_unless_registered();
  if (closed()) return;
  take_handle();
  if (pending()) throw_not_open();
  if (!settle()) {
    discard();
    if (expired() && !error_thrown_) throw expiry("ncclCommDestroy");
    return;
  }
  if (!revoked_) {
    // NCCL 2.24 to 2.30: where ncclCommDestroy returns the error, it leaves this thread in a group.
    const ncclResult_t error = async_error();
    if (!succeeded(error)) {
      const std::string text =
          failure_text(*library_, error, "ncclCommDestroy", comm_.load(), rank_);
      discard();
      if (error_thrown_) return;
      throw NcclFailure(error, "ncclCommDestroy", rank_, text);
    }
  }
  // ncclCommDestroy waits for the operations, too, but then the communicator cannot be revoked.
  const bool in_time = finalize_within_limit();
  const ncclComm_t comm = take_to_free();
  if (!comm) return;
  const ncclResult_t result = library_->nccl<&NcclTable::ncclCommDestroy>()(comm);
  release_kept();
  if (!in_time && !error_thrown_) throw expiry("ncclCommDestroy");
  if (!succeeded(result) && !error_thrown_)
    throw_nccl(*library_, result, "ncclCommDestroy", nullptr, rank_, __FILE__, __LINE__);
}

bool Communicator::finalize_within_limit() {
  const auto finalize = library_->nccl_table().ncclCommFinalize;
  if (!finalize || finalized_ || expired() || revoked_ || !blocking() || state_ != State::kOpen)
    return true;
  const Use comm(*this);
  const Deadlines::Call call(*deadlines_, "ncclCommDestroy");
  // Its failure is that of ncclCommDestroy, too. NCCL_COMM_BLOCKING=0 makes it return at once.
  if (finalize(comm) == ncclInProgress)
    poll_until(std::nullopt, [&] { return expired() || read_async_error() != ncclInProgress; });
  if (Interrupt::pending()) end_interrupted();
  return !expired();
}

void Communicator::abort() {
  if (!closed()) check_owned("abort");
  if (!closed() && shares())
    throw std::invalid_argument(
        "communicator: it shares the resources of its parent (split_share, shrink_share): an abort "
        "would end the parent's operations as if they were done; close() it or abort its parent");
  abort_alone();
}

void Communicator::discard() noexcept {
  parent_claim_.reset();
  try {
    if (!shares()) return abort_alone();
    tell_observers(true);
    if (const ncclComm_t comm = take_to_free())
      run_within(kAbortSeconds, [library = library_, comm] {
        NCCL_CALL_NOTHROW(*library, ncclCommDestroy, (comm));
      });
  } catch (...) {  // there is nobody to tell
  }
}

// Work that ends without a result when the communicator is aborted or revoked. Nothing if the
// library itself knows that, or it has expired: then it is noted already. seconds: how long it may
// still become done.
Deadlines::Unfinished Communicator::unfinished_on_device(double seconds) {
  if (library_->tells_failed_work() || expired() || closed() || borrowed_) return {};
  Deadlines::Unfinished unfinished;
  poll_until(seconds, [&] {
    unfinished = deadlines_->unfinished();
    return unfinished.streams.empty();
  });
  return unfinished;
}

// Whether it shares resources with its parent, which is open.
bool Communicator::shares() const {
  const auto parent = shared_parent_.lock();
  return parent && !parent->closed();
}

void Communicator::abort_alone() {
  tell_observers(true);
  const Deadlines::Unfinished unfinished = unfinished_on_device();
  const ncclComm_t comm = take_to_free();
  if (!comm) return;
  fail_unfinished(unfinished, {ncclInvalidUsage, "ncclCommAbort", rank_,
                               "work queued on the stream failed: its communicator was aborted"});
  const ncclResult_t result = abort_bounded(library_, comm);
  release_kept();
  if (!succeeded(result))
    throw_nccl(*library_, result, "ncclCommAbort", nullptr, rank_, __FILE__, __LINE__);
}

// Closes the communicator. Its handle, for the caller to free; null where it has none, has borrowed
// it, or is closed already.
ncclComm_t Communicator::take_to_free() {
  if (borrowed_) {
    forget();
    return nullptr;
  }
  State before = state_.load();
  do {
    if (before >= State::kClosed) return nullptr;
  } while (!state_.compare_exchange_weak(before, State::kClosed));
  if (before < State::kOpen) return std::atomic_ref(*created_).exchange(nullptr);
  Monitor::get().remove(*deadlines_);
  if (check() != 0) CommunicatorObservers::stop_watching();
  for (const auto& borrower : borrowers()) borrower->forget();
  end_calls();
  return comm_.exchange(nullptr);
}

// What NCCL has made after the communicator was aborted.
void Communicator::free_created() {
  if (const ncclComm_t comm = std::atomic_ref(*created_).exchange(nullptr))
    abort_bounded(library_, comm);
}

// Waits for the calls of other threads, where there are any, and makes them return. The state is
// kClosed: no call begins.
void Communicator::end_calls() {
  heavy_barrier();
  if (!in_use()) return;
  if (library_->nccl_table().ncclCommRevoke && !revoked_)
    run_within(kEndCallsSeconds, [library = library_, comm = comm_.load()] {
      NCCL_CALL_NOTHROW(*library, ncclCommRevoke, (comm, NCCL_REVOKE_DEFAULT));
    });
  poll_until(kEndCallsSeconds, [this] { return !in_use(); });
}

bool Communicator::expire(const Deadlines::Late& late) noexcept {
  if (expired()) return true;
  try {
    Inquiry::Answer answer;
    if (inquires_.load(std::memory_order_relaxed)) {
      if (!inquiry_ || !inquiry_->is_about(late)) {
        inquiry_ = std::make_shared<Inquiry>(weak_from_this(), late);
        Inquiry::ask(inquiry_);
      }
      const auto result = inquiry_->result();
      if (!result) return false;
      answer = *result;
    }
    char limit[64];
    std::snprintf(limit, sizeof limit, " did not complete within %g s", late.limit);
    std::string text = late.what + " on rank " + std::to_string(rank_) + limit;
    if (!answer.text.empty()) text += ": " + answer.text;
    const auto noted = note_expiry(late, {text, answer.missing});
    if (!noted) return true;
    const NcclFailure& failure = *noted;
    note_failure(failure.code, failure.what());
    const TimeoutPolicy policy = this->policy();
    if (policy.abort)
      abort_process(std::string("pynccl: ") + failure.what() +
                    "; the process is aborted (on_timeout)");
    // Where it is revoked already, its operations have ended, and a child may be in the making.
    try {
      if (late.call || !revoked_) end_expired(late.call);
    } catch (const std::exception&) {  // another thread may have closed it
    }
    expiry_ended_ = true;
    if (policy.callback) policy.callback(shared_from_this(), failure);
  } catch (const std::exception&) {  // the calls of NCCL that still return throw the expiry
  }
  return true;
}

// From now on those who wait find the reason; nothing is told to NCCL yet. None where the call that
// was late has returned.
std::optional<NcclFailure> Communicator::note_expiry(const Deadlines::Late& late,
                                                     Inquiry::Answer text) {
  const ForkLock fork_lock;
  {
    const std::lock_guard lock(mutex_);
    expiry_ = std::move(text);
  }
  if (!deadlines_->expire(late)) return std::nullopt;
  expired_.store(true, std::memory_order_release);
  State open = State::kOpen;  // nothing is issued any more
  if (!state_.compare_exchange_strong(open, State::kExpired) && open == State::kUnready)
    state_.compare_exchange_strong(open, State::kExpired);
  heavy_barrier();
  if (!library_->tells_failed_work())  // there the call of an operation only enqueues it
    poll_until(kIssueSeconds, [this] { return !issuing_.load(std::memory_order_acquire); });
  const Deadlines::Unfinished unfinished = deadlines_->unfinished();
  NcclFailure failure = expiry(late.what);
  FailedStreams::add(
      unfinished.streams, unfinished.since,
      [failure, communicator = weak_from_this(), function = late.what](const std::string& cause) {
        const auto alive = communicator.lock();
        throw alive ? alive->expiry(function, cause) : failure;
      });
  return failure;
}

void Communicator::set_policy(TimeoutPolicy policy) {
  std::optional<TimeoutPolicy> other(std::move(policy));  // the one before ends without the lock
  const std::lock_guard lock(mutex_);
  options_.on_timeout.swap(other);
}

TimeoutPolicy Communicator::policy() const {
  const std::lock_guard lock(mutex_);
  return *options_.on_timeout;
}

void Communicator::end_expired(const std::optional<Deadlines::Entry>& call) {
  const auto is_over = [&] {
    const auto calls = deadlines_->calls();
    return !call || std::find(calls.begin(), calls.end(), *call) == calls.end();
  };
  if (library_->nccl_table().ncclCommRevoke) {
    note_revoked();  // before the calls of other threads return
    const auto self = shared_from_this();
    try {
      if (run_within(kEndCallsSeconds, [self] { self->revoke(); })) return;
    } catch (const NcclFailure&) {  // it was revoked before, which ends all but some calls
      if (poll_until(kEndCallsSeconds, is_over)) return;
    }
  }
  abort_alone();
}

// The user has ended a wait of this thread: nothing that was issued can be relied on.
void Communicator::end_interrupted() noexcept {
  const auto revoke = library_->nccl_table().ncclCommRevoke;
  ask_owner();
  if (!revoke || closed() || revoked_.exchange(true)) return;
  fail_unfinished(unfinished_on_device(0),
                  {ncclRemoteError, "ncclCommRevoke", rank_,
                   "work queued on the stream failed: rank " + std::to_string(rank_) +
                       " was interrupted by a signal while it waited"});
  note_revoked();
  revoke(comm_.load(), NCCL_REVOKE_DEFAULT);
}

void Communicator::revoke() {
  const Use comm(*this);
  const auto revoke = library_->nccl<&NcclTable::ncclCommRevoke>();
  // First, since the call ends operations, and other threads must not take them for done.
  fail_unfinished(unfinished_on_device(),
                  {ncclInvalidUsage, "ncclCommRevoke", rank_,
                   "work queued on the stream failed: its communicator was revoked"});
  const bool before = revoked_;
  note_revoked();
  try {
    check(revoke(comm, NCCL_REVOKE_DEFAULT), "ncclCommRevoke");
  } catch (...) {
    note_revoked(before);
    throw;
  }
}

}  // namespace pynccl
