// The end of a communicator: finalize, close, abort, revoke, and the steps of recover().
//
// The behavior of NCCL 2.28.9 to 2.30.7 limits what can be called:
// - ncclCommRevoke ends the kernels of the communicator, then waits for NCCL's streams, and thus
//   for all work on the user's streams before the communicator's last operation.
// - ncclCommFinalize waits for these streams, and for the graphs that captured the communicator.
//   Afterwards the communicator cannot be revoked, and nothing ends the wait.
// - After either of them, ncclCommDestroy and ncclCommAbort free the communicator immediately, even
//   during another call, and even if graphs exist, which write to it when they are destroyed.
// Therefore ncclCommFinalize is only called when no operation is outstanding, every call that may
// not return runs on a separate thread, and a handle in use is never freed (free_handle).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>

#include "abi/constants.h"
#include "comm/communicator.h"
#include "comm/failed_streams.h"
#include "comm/observer.h"
#include "nccl/clock.h"
#include "nccl/fork_lock.h"
#include "nccl/interrupt.h"
#include "nccl/wait.h"

namespace pynccl {
namespace {

// Limits of waits:
constexpr double kEndCallsSeconds = 2;       // of abort(), for the calls of other threads
constexpr double kAbortSeconds = 5;          // of abort(), for ncclCommAbort
constexpr double kIssueSeconds = 0.1;        // of an expiry, for a call that issues an operation
constexpr double kRevokeSeconds = 2;         // of recover(), for the revocation
constexpr double kMinFinalizeSeconds = 0.1;  // at least, for ncclCommFinalize

double seconds_since(std::int64_t time) { return static_cast<double>(coarse_time() - time) * 1e-9; }

// Calls ncclCommDestroy or ncclCommAbort on a separate thread. Returns false if it takes longer,
// and then continues there. Throws NCCL's error.
bool free_within(double seconds, const std::shared_ptr<Library>& library, ncclComm_t comm,
                 bool aborts, int rank) {
  return run_within(seconds, [library, comm, aborts, rank] {
    const NcclTable& table = library->nccl_table();
    const char* function = aborts ? "ncclCommAbort" : "ncclCommDestroy";
    const ncclResult_t result = (aborts ? table.ncclCommAbort : table.ncclCommDestroy)(comm);
    if (!succeeded(result))
      throw_nccl(*library, result, function, nullptr, rank, __FILE__, __LINE__);
  });
}

}  // namespace

TimeoutPolicy default_policy() {
  const char* text = std::getenv("PYNCCL_ON_TIMEOUT");
  const std::string value = text ? text : "";
  if (value == "abort") return {true, {}, {}};
  if (value.empty() || value == "raise") return {};
  throw std::invalid_argument(std::string("PYNCCL_ON_TIMEOUT: '") + value +
                              "' is neither 'raise' nor 'abort'");
}

void Communicator::finalize() {
  check_owned("finalize");
  check_ready();
  const Use comm(*this);
  if (!blocking() || finalized_ || revoked_) {  // NCCL refuses a revoked one immediately
    const Waiting waiting(*this, "ncclCommFinalize");
    finalized_ = true;
    waiting.check(library_->nccl<&NcclTable::ncclCommFinalize>()(comm));
    mark_in_progress();
    if (expired()) throw expiry("ncclCommFinalize");
    return;
  }
  const double seconds = seconds_from_limit(deadlines_->limit());
  if (finalize_within(seconds, "ncclCommFinalize")) return;
  check_state();
  throw_late(seconds, "ncclCommFinalize");
}

void Communicator::close() {
  notify_observers(false);
  if (borrowed_) return forget_unless_registered();
  if (closed()) return;
  take_handle();
  if (pending()) throw_not_open();
  wait_for_expiry();
  if (expired() && !library_->nccl_table().ncclCommRevoke) {  // the expiry aborts it
    if (poll_until(kEndCallsSeconds, [this] { return closed(); })) return;
  }
  if (!settle()) {
    discard();
    if (expired() && !error_thrown_) throw expiry("ncclCommDestroy");
    return;
  }
  if (!revoked_) {
    // From NCCL 2.24 on, an ncclCommDestroy that returns the error leaves this thread in a group.
    const ncclResult_t error = async_error();
    if (!succeeded(error)) {
      const std::string text =
          failure_text(*library_, error, "ncclCommDestroy", comm_.load(), rank_);
      discard();
      if (error_thrown_) return;
      throw NcclFailure(error, "ncclCommDestroy", rank_, text);
    }
  }
  const double seconds = seconds_from_limit(deadlines_->limit());
  const std::int64_t began = coarse_time();
  const bool ended = expired() || revoked_;
  const bool thrown = error_thrown_;
  std::exception_ptr failure;
  bool in_time = true;
  if (state_ == State::kOpen && !ended) try {
      in_time = finalize_within(seconds, "ncclCommDestroy");
    } catch (const NcclFailure&) {
      failure = std::current_exception();
    }
  try {
    // A wait for ranks of other processes that have not closed theirs continues in the background.
    // After a shrink with abort, ncclCommDestroy would wait for the excluded ranks, which may be
    // dead (NCCL 2.31.2).
    free_handle(shrunk_by_abort_, std::max(kAbortSeconds, seconds - seconds_since(began)));
  } catch (const NcclFailure&) {  // usually the failure of ncclCommFinalize
    failure = std::current_exception();
  }
  if (thrown) return;
  if (failure) std::rethrow_exception(failure);
  if (in_time || ended) return;
  if (expired()) throw expiry("ncclCommDestroy");
  if (!revoked_) throw_late(seconds, "ncclCommDestroy");
}

// Waits until the operations are done, during which the monitor may expire the communicator, and
// then finalizes it. Returns false if it expired, was ended by another thread, or exceeds the
// limit.
bool Communicator::finalize_within(double seconds, const char* function) {
  const std::int64_t began = coarse_time();
  if (!finalized_) {
    const Use comm(*this);
    const Deadlines::Call call(*deadlines_, function);
    poll_until(std::nullopt, [&] {
      return unfinished().empty() || expired() || closed() || revoked_ || failed() ||
             Interrupt::poll();
    });
  }
  if (Interrupt::pending()) end_interrupted();
  if (expired() || closed() || revoked_) return false;
  const bool before = finalized_.exchange(true);
  const double left = std::max(kMinFinalizeSeconds, seconds - seconds_since(began));
  return call_within(left, [before](Communicator& self) {
    const auto finalize = self.library_->nccl_table().ncclCommFinalize;
    if (finalize && !before) self.check(finalize(self.comm_.load()), "ncclCommFinalize");
    poll_until(std::nullopt, [&self] { return self.read_async_error() != ncclInProgress; });
  });
}

// Calls a function on a separate thread, and waits for at most the given seconds. The handle counts
// as in use until the function returns. Rethrows its exception.
bool Communicator::call_within(double seconds, const std::function<void(Communicator&)>& function) {
  struct InUse {
    explicit InUse(std::shared_ptr<Communicator> used) : communicator(std::move(used)) {
      communicator->begin_use();
    }
    ~InUse() { communicator->end_use(); }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;
    const std::shared_ptr<Communicator> communicator;
  };
  const auto self = std::make_shared<const InUse>(shared_from_this());
  return run_within(seconds, [self, function] { function(*self->communicator); });
}

void Communicator::abort() {
  if (!closed()) check_owned("abort");
  if (!closed() && shares())
    throw std::invalid_argument(
        "communicator: it shares the resources of its parent (split_share, shrink_share), whose "
        "operations an abort would end as if they were done; close() it or abort its parent");
  abort_alone();
}

void Communicator::discard() noexcept {
  parent_claim_.reset();
  try {
    if (!shares() && open_shared_children().empty()) return abort_alone();
    notify_observers(true);
    free_handle(false, kAbortSeconds);
  } catch (...) {  // there is no caller to report it to
  }
}

// Whether it shares resources with its parent, and the parent is open.
bool Communicator::shares() const {
  const auto parent = shared_parent_.lock();
  return parent && !parent->closed();
}

std::vector<std::shared_ptr<Communicator>> Communicator::open_shared_children() const {
  std::vector<std::shared_ptr<Communicator>> open;
  const std::lock_guard lock(mutex_);
  for (const auto& one : shared_children_)
    if (auto child = one.lock(); child && !child->closed()) open.push_back(std::move(child));
  return open;
}

void Communicator::abort_alone() {
  // NCCL has one abort flag for all of them. It would accept later operations of the children and
  // end them without a result.
  for (const auto& child : open_shared_children()) child->abort_alone();
  notify_observers(true);
  if (!borrowed_)
    fail_queued_work(ncclInvalidUsage, "ncclCommAbort", "its communicator was aborted");
  free_handle(true, kAbortSeconds);
}

// Closes the communicator and frees its handle. Does nothing if the handle is null or borrowed, or
// the communicator is closed. Returns false if freeing takes longer and continues in the
// background, or if the handle is leaked: because an NCCL call still uses it, or because it was
// revoked and graphs may contain its operations.
bool Communicator::free_handle(bool aborts, double seconds) {
  wait_for_expiry();
  const ncclComm_t comm = take_to_free();
  if (!comm) return true;
  const auto freed = [&] {
    const bool ends_calls = library_->nccl_table().ncclCommRevoke;
    if (in_use() && (ends_calls || finalized_)) return false;
    const bool frees_at_once = library_->memory() != Memory::kHost;  // hostnccl counts references
    if (revoked_ && captured() && frees_at_once) return false;
    return free_within(seconds, library_, comm, aborts, rank_);
  }();
  std::vector<std::shared_ptr<void>> kept;
  {
    const std::lock_guard lock(mutex_);
    kept.swap(kept_);
  }
  if (!freed) keep_forever(std::move(kept));  // NCCL still uses it
  return freed;
}

// Closes the communicator and returns its handle for the caller to free, or null if the handle is
// null or borrowed, or the communicator was closed.
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
  OpenCommunicators::remove(*deadlines_);
  if (check() != 0) Observers::stop_operations();
  for (const auto& borrower : borrowers()) borrower->forget();
  end_calls();
  return comm_.exchange(nullptr);
}

// Frees a handle that NCCL wrote after the communicator was aborted.
void Communicator::free_created() {
  if (const ncclComm_t comm = std::atomic_ref(*created_).exchange(nullptr))
    free_within(kAbortSeconds, library_, comm, true, rank_);
}

// Makes the calls of other threads return, and waits for them. The state is kClosed, so no further
// call begins.
void Communicator::end_calls() {
  heavy_barrier();
  if (!in_use()) return;
  if (library_->nccl_table().ncclCommRevoke && !revoked_ && !finalized_) try {
      mark_revoked();
      revoke_within(kEndCallsSeconds);
    } catch (const NcclFailure&) {  // it was revoked before
    }
  // Nothing ends a finalization in progress.
  poll_until(finalized_ ? kIssueSeconds : kEndCallsSeconds, [this] { return !in_use(); });
}

// Needed because an expiry revokes on a separate thread.
void Communicator::wait_for_expiry() const {
  if (deadlines_->expired()) poll_until(kEndCallsSeconds, [this] { return expiry_ended_.load(); });
}

void Communicator::expire(const Deadlines::Late& late, const std::string& answer,
                          const std::optional<MissingRanks>& missing) {
  char limit[64];
  std::snprintf(limit, sizeof limit, " did not complete within %g s", late.limit);
  std::string text = late.what + " on rank " + std::to_string(rank_) + limit;
  if (!answer.empty()) text += ": " + answer;
  if (const std::int64_t silent = Deadlines::silent_since(); silent != 0 && deadlines_->on_gpu()) {
    std::snprintf(limit, sizeof limit, "; the GPU driver has not answered for %g s",
                  std::round(static_cast<double>(coarse_time() - silent) / 1e8) / 10);
    text += limit;
  }
  const auto recorded = record_expiry(late, {text, missing});
  if (!recorded) return;
  const NcclFailure& failure = *recorded;
  const TimeoutPolicy policy = this->policy();
  if (policy.abort) {
    std::fprintf(stderr, "pynccl: %s; the process is aborted (on_timeout)\n", failure.what());
    std::fflush(stderr);
    std::abort();
  }
  // On a separate thread, because the revocation of this communicator may have to wait for that of
  // another one, whose operation precedes this one's on a stream.
  std::thread([self = shared_from_this(), call = late.call, callback = policy.callback, failure] {
    try {
      // If it is already revoked, its operations have ended, and a child may be under construction.
      if (call || !self->revoked_) self->end_expired(call);
    } catch (const std::exception&) {  // another thread may have closed it
    }
    self->expiry_ended_ = true;
    if (callback) callback(self, failure);
  }).detach();
}

// Records the expiry, so that waits report it, before anything is revoked or aborted in NCCL.
// Returns none if the late call has returned meanwhile.
std::optional<NcclFailure> Communicator::record_expiry(const Deadlines::Late& late, Expiry expiry) {
  {
    const ForkLock fork_lock;
    {
      const std::lock_guard lock(mutex_);
      expiry_ = std::move(expiry);
    }
    if (!deadlines_->expire(late)) return std::nullopt;
  }
  NcclFailure failure = this->expiry(late.what);
  record_failure(failure.code, failure.what());  // the process may exit as soon as a wait throws
  const ForkLock fork_lock;
  expired_.store(true, std::memory_order_release);
  State open = State::kOpen;  // operations are refused from now on
  if (!state_.compare_exchange_strong(open, State::kExpired) && open == State::kUnready)
    state_.compare_exchange_strong(open, State::kExpired);
  heavy_barrier();
  if (!library_->reports_failed_work())  // these libraries only enqueue, which does not block
    poll_until(kIssueSeconds, [this] { return !issuing_.load(std::memory_order_acquire); });
  const auto throw_expiry = [failure, communicator = weak_from_this(),
                             function = late.what](const std::string& cause) {
    const auto alive = communicator.lock();
    throw alive ? alive->expiry(function, cause) : failure;
  };
  for (const Deadlines::Unfinished& one : unfinished())
    FailedStreams::add(one.streams, one.since, throw_expiry);
  return failure;
}

void Communicator::set_policy(TimeoutPolicy policy) {
  std::optional<TimeoutPolicy> other(std::move(policy));  // the old one is destroyed unlocked
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
    mark_revoked();  // before the calls of other threads return
    try {
      const Use comm(*this);
      COMM_CHECK(comm, ncclCommRevoke, (comm, NCCL_REVOKE_DEFAULT));
      return;
    } catch (const NcclFailure&) {  // it was revoked before, which ended most calls
      if (poll_until(kEndCallsSeconds, is_over)) return;
    }
  }
  expiry_ended_ = true;  // abort_alone() would wait for it
  abort_alone();
}

// Revokes the communicator after the user interrupted a wait of this thread: the results of issued
// operations are unreliable.
void Communicator::end_interrupted() noexcept {
  ask_owner();
  if (!library_->nccl_table().ncclCommRevoke || closed() || revoked_.exchange(true)) return;
  try {
    fail_queued_work(
        ncclRemoteError, "ncclCommRevoke",
        "rank " + std::to_string(rank_) + " was interrupted by a signal while it waited", 0);
    mark_revoked();
    revoke_within(kEndCallsSeconds);
  } catch (const std::exception&) {  // the interrupted wait throws anyway
  }
}

void Communicator::revoke() {
  const Use comm(*this);
  library_->nccl<&NcclTable::ncclCommRevoke>();
  // Must come first: other threads must not consider the operations that the revocation ends done.
  fail_queued_work(ncclInvalidUsage, "ncclCommRevoke", "its communicator was revoked");
  const bool before = revoked_;
  mark_revoked();
  double seconds = seconds_from_limit(deadlines_->limit());
  // A signal handler may run in an operation of the communicator, which ends only after it.
  const bool in_handler = Interrupt::in_handler();
  if (in_handler) seconds = std::min(seconds, kEndCallsSeconds);
  bool in_time;
  try {
    in_time = revoke_within(seconds);
  } catch (...) {
    mark_revoked(before);
    throw;
  }
  if (!in_time && !in_handler) throw_late(seconds, "ncclCommRevoke");
}

// Returns false after the given seconds, while the revocation continues on its thread. Throws if
// NCCL refuses it, because the communicator was revoked or finalized before.
bool Communicator::revoke_within(double seconds) {
  return call_within(seconds, [comm = comm_.load()](Communicator& self) {
    self.check(self.library_->nccl_table().ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT),
               "ncclCommRevoke");
  });
}

void Communicator::set_timeout(std::optional<double> seconds) {
  options_.timeout = seconds.value_or(std::numeric_limits<double>::infinity());
  deadlines_->set_limit(limit_from_seconds(seconds));
  Observers::deadlines_changed();
}

void Communicator::begin_recovery() {
  const Use use(*this);
  deadlines_->set_limit(FlightRecord::kNoLimit);
  growing_ = false;  // an unused id was for ranks that join the old members
  if (!library_->nccl_table().ncclCommRevoke) return;
  // Must come first, as in revoke().
  fail_queued_work(ncclInvalidUsage, "ncclCommRevoke", "its communicator was revoked by recover()");
  mark_revoked();
  // revoked_ alone does not mean that NCCL was called: an expiry may be about to call it.
  try {
    revoke_within(kRevokeSeconds);
  } catch (const NcclFailure&) {  // it is already revoked
  }
  if (!blocking()) wait_ready(std::nullopt);
}

std::optional<std::vector<int>> Communicator::agree(double seconds, std::vector<int> lost) {
  using Agree = ncclResult_t (*)(ncclComm_t, double, int*, int*);
  const auto agree = reinterpret_cast<Agree>(library_->symbol("hostCommAgree"));
  if (!agree) return std::nullopt;
  const Use comm(*this);
  const Waiting waiting(*this, "hostCommAgree");
  int count = static_cast<int>(lost.size());
  lost.resize(static_cast<std::size_t>(nranks()));
  waiting.check(agree(comm, seconds, lost.data(), &count));
  lost.resize(static_cast<std::size_t>(count));
  return lost;
}

void Communicator::begin_recovered(Communicator& parent, const std::vector<int>& lost,
                                   const std::optional<ncclUniqueId>& id) {
  if (id) {
    const auto before = [rank = parent.rank()](int other) { return other < rank; };
    const auto lower = static_cast<int>(std::count_if(lost.begin(), lost.end(), before));
    return begin_init(parent.nranks() - static_cast<int>(lost.size()), {*id},
                      parent.rank() - lower);
  }
  if (lost.empty())
    begin_split(parent, 0, parent.rank());
  else
    begin_shrink(parent, lost, NCCL_SHRINK_ABORT);
  derive_id(parent, {kRecover}, lost);  // without a number: the parent is aborted afterwards
}

}  // namespace pynccl
