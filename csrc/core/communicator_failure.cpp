// What a communicator throws where NCCL has failed, it is not open, or something was late.
#include <cstdio>
#include <string_view>

#include "core/communicator.h"
#include "core/interrupt.h"

namespace pynccl {

void Communicator::throw_not_open() const {
  if (expired()) throw NcclFailure(ncclTimeout, "ncclCommAbort", rank_, expiry());
  const State state = state_.load();
  if (state == State::kSuspended)
    throw NcclFailure(ncclInvalidUsage, "ncclCommSuspend", rank_,
                      "communicator: it is suspended; resume() makes it usable again");
  throw std::invalid_argument(
      state == State::kPending  ? "communicator: it is still being made; leave the group first"
      : state == State::kMaking ? "communicator: it is still being made; wait until it is ready"
                                : "communicator: it is closed");
}

void Communicator::throw_failed(ncclResult_t result, const char* function, const char* file,
                                int line, const char* hint) {
  std::string text = failure_text(*library_, result, function, comm_.load(), rank_);
  if (result == ncclInvalidArgument) text += hint;
  const NcclFailure failure = noted(NcclFailure(result, function, rank_, text));
  throw NcclFailure(failure.code, function, rank_, failure.what() + place_text(file, line));
}

void Communicator::throw_operation_failed(ncclResult_t result, const char* function,
                                          const char* hint, std::source_location where) {
  deadlines_->recorder().fail();
  throw_failed(result, function, where.file_name(), static_cast<int>(where.line()), hint);
}

std::string Communicator::expiry() const {
  const std::lock_guard lock(mutex_);
  return expiry_;
}

NcclFailure Communicator::noted(const NcclFailure& failure) {
  constexpr std::string_view kAborted = "; another thread has aborted the communicator";
  // A refused argument leaves the communicator without an error: close() has none to throw yet.
  if (failed()) error_thrown_ = true;
  if (Interrupt::pending()) end_interrupted();
  const std::string text = failure.what();
  if (expired()) {
    error_thrown_ = true;
    if (failure.code == ncclTimeout) return failure;
    return NcclFailure(ncclTimeout, failure.function, rank_, expiry() + ": " + text);
  }
  if (!closed() || text.ends_with(kAborted)) return failure;
  return NcclFailure(failure.code, failure.function, failure.rank, text + std::string(kAborted));
}

void Communicator::throw_late(double seconds, const char* function) const {
  const ncclComm_t comm = std::atomic_ref(*created_).load(std::memory_order_acquire);
  const char* last = library_->nccl<&NcclTable::ncclGetLastError>()(comm);
  char limit[32];
  std::snprintf(limit, sizeof limit, "%g s", seconds);
  std::string text = std::string(function) + " on rank " + std::to_string(rank_) +
                     " did not complete within " + limit;
  if (last && *last) text += std::string(": ") + last;
  throw NcclFailure(ncclTimeout, function, rank_, text);
}

}  // namespace pynccl
