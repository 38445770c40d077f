#include "hostnccl/group/group.h"

#include <map>
#include <set>

#include "hostnccl/group/dispatch.h"
#include "hostnccl/group/simulate.h"

namespace hostnccl {
namespace {

bool is_message_to_self(const Item& item) {
  return is_message(item.operation.kind) && item.operation.root_or_peer == item.comm->rank();
}

}  // namespace

Group& Group::of_this_thread() {
  thread_local Group group;
  return group;
}

void Group::note_failure(const Error& error) {
  if (!failure_) failure_ = error;
}

bool Group::uses(const Ref<Communicator>& comm) const {
  for (const Item& item : items_) {
    if (item.comm == comm) return true;
  }
  for (const Job& job : jobs_) {
    if (job.comm == comm || job.parent == comm) return true;
  }
  return false;
}

abi::ncclResult_t Group::submit(Item&& item) {
  if (active()) {
    items_.push_back(std::move(item));
    return abi::ncclSuccess;
  }
  if (is_message_to_self(item)) {
    fail(abi::ncclInvalidUsage,
         "rank %d sends to or receives from itself: both must be called in one group",
         item.comm->rank());
  }
  dispatch(item, launch_);
  return abi::ncclSuccess;
}

abi::ncclResult_t Group::submit(Job job) {
  if (!active()) return run_jobs(&job, 1);
  jobs_.push_back(std::move(job));
  return abi::ncclSuccess;
}

void Group::leave(const char* function) {
  if (depth_ == 0) {
    fail(abi::ncclInvalidUsage, "%s without an ncclGroupStart in this thread", function);
  }
  --depth_;
}

abi::ncclResult_t Group::end() {
  leave("ncclGroupEnd");
  if (active()) return abi::ncclSuccess;
  try {
    check();
    const abi::ncclResult_t result = start_all();
    clear();
    return result;
  } catch (...) {
    give_up();
  }
}

std::optional<double> Group::end_simulated() {
  leave("ncclGroupSimulateEnd");
  if (active()) return std::nullopt;
  try {
    check();
    if (!jobs_.empty()) {
      fail(abi::ncclInvalidUsage, "ncclGroupSimulateEnd in a group that makes communicators");
    }
    std::optional<double> microseconds;
    if (!items_.empty()) microseconds = estimate(items_);
    clear();
    return microseconds;
  } catch (...) {
    give_up();
  }
}

// In a catch block: nothing of the group will be, and the exception goes on.
void Group::give_up() {
  const Error error = current_error();
  for (Job& job : jobs_) job.discard();
  clear();
  throw error;
}

void Group::clear() {
  failure_.reset();
  items_.clear();
  jobs_.clear();
}

void Group::check() const {
  if (failure_) throw *failure_;
  bool to_self = false;
  bool events = false;
  for (const Item& item : items_) {
    to_self = to_self || is_message_to_self(item);
    events = events || item.launched;
  }
  if (to_self) check_messages_to_self();
  if (events) check_events();
}

// Every send to oneself needs its receive: nobody else could bring it.
void Group::check_messages_to_self() const {
  std::map<Communicator*, int> open;
  for (const Item& item : items_) {
    if (!is_message_to_self(item)) continue;
    open[item.comm.get()] += item.operation.kind == Kind::Send ? 1 : -1;
  }
  for (const auto& [comm, difference] : open) {
    if (difference == 0) continue;
    fail(abi::ncclInvalidUsage, "rank %d has %d more %s itself than %s in this group", comm->rank(),
         std::abs(difference), difference > 0 ? "sends to" : "receives from",
         difference > 0 ? "receives" : "sends");
  }
}

// As in NCCL, where a communicator's part of a group is one kernel.
void Group::check_events() const {
  std::set<Communicator*> seen;
  for (const Item& item : items_) {
    if (!item.launched || seen.insert(item.comm.get()).second) continue;
    fail(abi::ncclInvalidUsage, "rank %d has more than one launchCompletionEvent in this group",
         item.comm->rank());
  }
}

abi::ncclResult_t Group::start_all() {
  abi::ncclResult_t result = abi::ncclSuccess;
  if (!jobs_.empty()) {
    std::vector<Job> jobs;
    jobs.swap(jobs_);
    result = run_jobs(jobs.data(), jobs.size());
  }
  if (!items_.empty()) dispatch(items_, launch_);
  return result;
}

}  // namespace hostnccl
