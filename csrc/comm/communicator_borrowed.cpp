// Communicators that borrow the handle of another owner. An owner that is a Communicator notifies
// its borrowers of changes. A foreign owner is asked before each use, if it supports that.
#include <algorithm>
#include <mutex>
#include <vector>

#include "comm/communicator.h"
#include "comm/observer.h"

namespace pynccl {

// Leaks memory that NCCL may still use and that can no longer be deregistered.
void Communicator::keep_forever(std::vector<std::shared_ptr<void>> memory) {
  static std::mutex mutex;
  static auto& all = *new std::vector<std::vector<std::shared_ptr<void>>>;
  const std::lock_guard lock(mutex);
  all.push_back(std::move(memory));
}

void Communicator::borrow(ncclComm_t comm, Owner owner) {
  if (owner.communicator) {
    owner.communicator->handle();
    if (owner.communicator->borrowed_) owner = owner.communicator->owner();
  }
  borrowed_ = true;
  creator_ = "borrow";
  const std::shared_ptr<Communicator> lender = owner.communicator;
  const bool asks = !lender && owner.ask;
  if (lender) {
    options_.config = lender->options_.config;
    options_.strings = lender->options_.strings;
    options_.device = lender->device();
  } else {
    NCCL_CHECK(*library_, nullptr, -1, ncclCommCuDevice, (comm, &options_.device));
  }
  owner_ = std::make_shared<const Owner>(std::move(owner));
  comm_.store(comm, std::memory_order_release);
  begin_deadlines();
  state_.store(asks ? State::kLent : State::kOpen);
  if (lender) {
    const std::lock_guard lock(lender->mutex_);
    std::erase_if(lender->borrowers_, [](const auto& one) { return one.expired(); });
    lender->borrowers_.push_back(weak_from_this());
  }
  // A lender that was closed meanwhile has not notified this borrower.
  if (lender && lender->closed()) forget();
  read_identity();
  if (lender) {
    derive_id(*lender, {kBorrow, ++lender->borrows_});
  } else {
    // Of a foreign handle, all ranks know only the number of ranks and the order of borrowing.
    static std::atomic<std::uint64_t> borrowed = 0;
    identity_.id = FlightIdentity::mix(FlightIdentity::mix(kBorrow, ++borrowed),
                                       static_cast<std::uint64_t>(nranks_));
  }
  publish_identity();
}

// A copy of the owner of a borrowed communicator.
Communicator::Owner Communicator::owner() const {
  std::shared_ptr<const Owner> owner;
  {
    const std::lock_guard lock(mutex_);
    owner = owner_;
  }
  if (!owner) throw_not_open();  // which locks the mutex if it has expired
  return *owner;
}

void Communicator::check_owned(const char* call) const {
  if (borrowed_)
    throw std::invalid_argument(std::string(call) +
                                ": the communicator is borrowed; only its owner can do that");
}

std::shared_ptr<Communicator> Communicator::find(const Library& library, ncclComm_t comm) {
  for (const auto& one : OpenCommunicators::communicators())
    if (!one->borrowed_ && one->library_.get() == &library && one->comm_.load() == comm) return one;
  return nullptr;
}

// Called if the state is not kOpen: throws unless the communicator is lent, or has become ready.
void Communicator::check_open() {
  State state = state_.load();
  if (state == State::kUnready) {
    check(async_error(), "ncclCommGetAsyncError");
    state = state_.load();
    if (state == State::kOpen) return;
  }
  if (state != State::kLent || !still_lent()) throw_not_open();
}

bool Communicator::still_lent() noexcept {
  std::shared_ptr<const Owner> owner;  // another thread may forget it
  {
    const std::lock_guard lock(mutex_);
    owner = owner_;
  }
  const ncclComm_t comm = comm_.load();
  if (owner && comm && owner->ask() == comm) return true;
  try {
    notify_observers(true);
  } catch (const std::exception&) {  // an observer cannot refuse a close by the owner
  }
  forget();
  return false;
}

// Ends the use of a borrowed handle. Keeps the reference to the owner, because its release may
// close the owner's communicator and may need the GIL, for which the monitor thread must not wait.
void Communicator::forget() noexcept {
  State before = state_.load();
  do {
    if (before >= State::kClosed) return;
  } while (!state_.compare_exchange_weak(before, State::kClosed));
  OpenCommunicators::remove(*deadlines_);
  comm_.store(nullptr);
  std::vector<std::shared_ptr<void>> kept;
  std::shared_ptr<Communicator> lender;
  {
    const std::lock_guard lock(mutex_);
    kept.swap(kept_);
    if (owner_) lender = owner_->communicator;
  }
  if (kept.empty()) return;
  // The windows over this memory were not closed, and stay registered with the owner.
  if (!lender) return keep_forever(std::move(kept));
  if (lender->closed()) return;
  for (auto& memory : kept) lender->keep_until_closed(std::move(memory));
}

void Communicator::forget_unless_registered() {
  std::shared_ptr<const Owner> owner;  // released without the lock
  {
    const std::lock_guard lock(mutex_);
    if (!closed() && (registrations_ != 0 || window_memory_.size() > kept_.size()))
      throw std::invalid_argument(
          "communicator: it is borrowed, and buffers or windows are still registered with it; "
          "close them first");
    owner = owner_;
  }
  forget();
  const std::lock_guard lock(mutex_);
  owner_.reset();
}

// The communicator that owns the handle, or this one if the owner is foreign.
std::shared_ptr<Communicator> Communicator::root() {
  const std::lock_guard lock(mutex_);
  return owner_ && owner_->communicator ? owner_->communicator : shared_from_this();
}

std::vector<std::shared_ptr<Communicator>> Communicator::borrowers() const {
  std::vector<std::shared_ptr<Communicator>> open;
  const std::lock_guard lock(mutex_);
  for (const auto& one : borrowers_)
    if (auto borrower = one.lock()) open.push_back(std::move(borrower));
  return open;
}

void Communicator::notify_observers(bool aborted) const {
  Observers::before_close(*this, aborted);
  for (const auto& borrower : borrowers()) Observers::before_close(*borrower, aborted);
}

void Communicator::mark_revoked(bool revoked) {
  visit_users([revoked](Communicator& one) { one.revoked_ = revoked; });
}

// Operations are refused from now on: NCCL would accept them, but without the excluded ranks they
// cannot complete.
void Communicator::mark_shrunk() {
  visit_users([](Communicator& one) {
    one.shrunk_by_abort_ = true;
    State open = State::kOpen;
    one.state_.compare_exchange_strong(open, State::kShrunk);
  });
}

std::vector<Deadlines::Unfinished> Communicator::unfinished() {
  std::vector<Deadlines::Unfinished> all;
  visit_users([&all](Communicator& one) {
    Deadlines::Unfinished unfinished = one.deadlines_->unfinished();
    if (!unfinished.streams.empty()) all.push_back(std::move(unfinished));
  });
  return all;
}

bool Communicator::in_use() const {
  const auto used = [](const Communicator& one) { return one.issuing_.load() || one.uses_ != 0; };
  return used(*this) ||
         std::ranges::any_of(borrowers(), [&](const auto& one) { return used(*one); });
}

// Whether a graph may contain operations on the handle.
bool Communicator::captured() const {
  return deadlines_->captured() || std::ranges::any_of(borrowers(), [](const auto& one) {
           return one->deadlines_->captured();
         });
}

}  // namespace pynccl
