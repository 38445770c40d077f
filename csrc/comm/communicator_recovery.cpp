// The steps of recover(): from a communicator with a rank that is lost to one without it.
#include <limits>

#include "abi/constants.h"
#include "comm/communicator.h"
#include "comm/observer.h"

namespace pynccl {
namespace {

constexpr double kRevokeSeconds = 2;  // how long recover() waits for the revocation

}  // namespace

void Communicator::set_timeout(std::optional<double> seconds) {
  options_.timeout = seconds.value_or(std::numeric_limits<double>::infinity());
  deadlines_->set_limit(limit_from_seconds(seconds));
  Observers::deadlines_changed();
}

void Communicator::begin_recovery() {
  const Use use(*this);
  deadlines_->set_limit(FlightRecord::kNoLimit);
  if (!library_->nccl_table().ncclCommRevoke) return;
  // First, as in revoke().
  fail_unfinished(unfinished_on_device(),
                  {ncclInvalidUsage, "ncclCommRevoke", rank_,
                   "work queued on the stream failed: its communicator was given up by recover()"});
  note_revoked();
  // That revoked_ was set does not mean that NCCL was called: the expiry may be about to.
  try {
    revoke_within(kRevokeSeconds);
  } catch (const NcclFailure&) {  // it is revoked already
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

void Communicator::begin_recovered(Communicator& parent, const std::vector<int>& lost) {
  if (lost.empty())
    begin_split(parent, 0, parent.rank());
  else
    begin_shrink(parent, lost, NCCL_SHRINK_ABORT);
  identify_recovered(parent, lost);
}

}  // namespace pynccl
