#include "hostnccl/group/group.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "hostnccl/communicator/connecting.h"
#include "hostnccl/group/dispatch.h"
#include "hostnccl/group/simulate.h"

namespace hostnccl {
namespace {

bool is_message_to_self(const PendingOperation& pending) {
  return is_message(pending.operation.kind) &&
         pending.operation.root_or_peer == pending.comm->rank();
}

// In strict mode, waits until first operations have connected their ranks. All of a group begin
// before any of them waits: several ranks may be this thread's.
void connect_ranks(std::span<const PendingOperation> operations) {
  std::vector<std::pair<Ref<Communicator>, std::vector<Wait>>> all;
  for (const auto& [comm, operation, stream, event, window] : operations) {
    if (!comm->settings().strict_calls) continue;
    std::vector<Wait> waits = begin_connecting(*comm, operation);
    const CommSettings& settings = comm->settings();
    if (settings.blocking && settings.connects && !waits.empty())
      all.emplace_back(comm, std::move(waits));
  }
  for (const auto& [comm, waits] : all) wait_until_connected(*comm, waits);
}

// What NCCL runs, or keeps for the next group, although the group is simulated.
void check_simulated(const PendingOperation& pending) {
  const CommSettings& settings = pending.comm->settings();
  if (!settings.strict) return;
  if (!settings.blocking) {
    fail(abi::ncclInvalidUsage,
         "ncclGroupSimulateEnd with a non-blocking communicator: NCCL runs the operations");
  }
  switch (const Kind kind = pending.operation.kind) {
    case Kind::AllReduce:
    case Kind::Broadcast:
    case Kind::Reduce:
    case Kind::AllGather:
    case Kind::ReduceScatter:
      return;
    default:
      fail(abi::ncclInvalidUsage,
           "ncclGroupSimulateEnd with %s: NCCL keeps its messages for the next group",
           traits_of(kind).name);
  }
}

}  // namespace

Group& Group::of_this_thread() {
  thread_local Group group;
  return group;
}

void Group::set_error(const Error& error) {
  if (!error_) error_ = error;
}

bool Group::uses(const Ref<Communicator>& comm) const {
  for (const PendingOperation& pending : operations_) {
    if (pending.comm == comm) return true;
  }
  for (const Job& job : jobs_) {
    if (job.comm == comm || job.parent == comm) return true;
  }
  return false;
}

abi::ncclResult_t Group::submit(PendingOperation&& operation) {
  operation.comm->note_use(thread_);
  if (active()) {
    operations_.push_back(std::move(operation));
    return abi::ncclSuccess;
  }
  if (is_message_to_self(operation)) {
    fail(abi::ncclInvalidUsage, "rank %d sends to or receives from itself: call both in one group",
         operation.comm->rank());
  }
  connect_ranks({&operation, 1});
  dispatch(operation, inline_engine_);
  return operation.comm->begin_issuing() ? abi::ncclInProgress : abi::ncclSuccess;
}

abi::ncclResult_t Group::submit(Job job) {
  if (job.parent) job.parent->note_use(thread_);
  if (!active()) return run_jobs(&job, 1);
  try {
    check_alike(job);
  } catch (...) {
    job.discard();
    throw;
  }
  jobs_.push_back(std::move(job));
  return abi::ncclSuccess;
}

// NCCL refuses a blocking creation together with a non-blocking one.
void Group::check_alike(const Job& job) const {
  const auto creates = [](const Job& one) { return one.comm && !one.parent; };
  if (!creates(job) || !job.comm->settings().strict_calls) return;
  for (const Job& other : jobs_) {
    if (creates(other) && other.blocking != job.blocking)
      fail(abi::ncclInvalidArgument, "a blocking and a non-blocking creation in one group");
  }
}

void Group::exit_level(const char* function) {
  if (depth_ == 0) {
    fail(abi::ncclInvalidUsage, "%s without ncclGroupStart in this thread", function);
  }
  --depth_;
}

abi::ncclResult_t Group::end() {
  exit_level("ncclGroupEnd");
  if (active()) return abi::ncclSuccess;
  try {
    check();
    const abi::ncclResult_t result = start_all();
    clear();
    return result;
  } catch (...) {
    cancel_and_rethrow();
  }
}

std::optional<double> Group::end_simulated() {
  exit_level("ncclGroupSimulateEnd");
  if (active()) return std::nullopt;
  try {
    check();
    if (!jobs_.empty()) {
      fail(abi::ncclInvalidUsage, "ncclGroupSimulateEnd in a group that initializes communicators");
    }
    for (const PendingOperation& pending : operations_) check_simulated(pending);
    std::optional<double> microseconds;
    // NCCL copies immediately in a communicator of one rank.
    const auto copies = [](const PendingOperation& pending) {
      return pending.comm->settings().strict && pending.comm->nranks() == 1;
    };
    if (!std::ranges::all_of(operations_, copies))
      microseconds = estimate_microseconds(operations_);
    clear();
    return microseconds;
  } catch (...) {
    cancel_and_rethrow();
  }
}

// Called in a catch block. Cancels the jobs that have not run and clears the group.
void Group::cancel_and_rethrow() {
  const Error error = current_error();
  for (Job& job : jobs_) {
    const bool kept = job.comm && !job.parent && job.comm->settings().strict_calls;
    if (kept)
      job.comm->state().fail(error);  // as in NCCL the caller's, to abort
    else
      job.discard();
  }
  clear();
  throw error;
}

void Group::clear() {
  error_.reset();
  operations_.clear();
  jobs_.clear();
}

void Group::check() const {
  if (error_) throw *error_;
  bool to_self = false;
  bool has_events = false;
  for (const PendingOperation& pending : operations_) {
    to_self = to_self || is_message_to_self(pending);
    has_events = has_events || pending.launch_event;
  }
  if (to_self) check_messages_to_self();
  if (has_events) check_launch_events();
}

// A send to the own rank needs its receive in the same group: a later receive starts only after
// this group has ended.
void Group::check_messages_to_self() const {
  std::map<Communicator*, int> balance;  // sends minus receives
  for (const PendingOperation& pending : operations_) {
    if (!is_message_to_self(pending)) continue;
    balance[pending.comm.get()] += pending.operation.kind == Kind::Send ? 1 : -1;
  }
  for (const auto& [comm, difference] : balance) {
    if (difference == 0) continue;
    fail(abi::ncclInvalidUsage, "rank %d has %d more %s itself than %s in this group", comm->rank(),
         std::abs(difference), difference > 0 ? "sends to" : "receives from",
         difference > 0 ? "receives" : "sends");
  }
}

// As in NCCL, where the operations of one communicator in a group are a single kernel launch.
void Group::check_launch_events() const {
  std::set<Communicator*> seen;
  for (const PendingOperation& pending : operations_) {
    if (!pending.launch_event || seen.insert(pending.comm.get()).second) continue;
    fail(abi::ncclInvalidUsage, "rank %d has more than one launchCompletionEvent in this group",
         pending.comm->rank());
  }
}

abi::ncclResult_t Group::start_all() {
  abi::ncclResult_t result = abi::ncclSuccess;
  if (!jobs_.empty()) {
    std::vector<Job> jobs;
    jobs.swap(jobs_);
    result = run_jobs(jobs.data(), jobs.size());
  }
  if (operations_.empty()) return result;
  connect_ranks(operations_);
  dispatch(operations_, inline_engine_);
  bool continues = false;
  for (const PendingOperation& pending : operations_)
    continues = pending.comm->begin_issuing() || continues;
  if (!continues) return result;
  for (const PendingOperation& pending : operations_) {
    if (pending.comm->settings().blocking && pending.comm->nranks() > 1)
      pending.comm->state().begin_issuing(true);
  }
  return abi::ncclInProgress;
}

}  // namespace hostnccl
