#include "hostnccl/operations/progress_engine.h"

#include <sched.h>

#include <algorithm>

#include "hostnccl/base/interrupt.h"
#include "hostnccl/communicator/waits.h"

namespace hostnccl {
namespace {

// In strict mode the one-sided operations of context c have the key kFirstContext + c, which is
// below all other keys.
constexpr int64_t kFirstContext = INT32_MIN;

constexpr auto kMaxSleep = std::chrono::milliseconds(50);           // between checks of the waits
constexpr auto kLivenessInterval = std::chrono::milliseconds(200);  // between checks of processes

// Operations of a communicator with equal keys share a queue.
int64_t queue_key(const Operation& operation, const CommSettings& settings) {
  if (settings.strict && is_one_sided(operation.kind)) {
    return kFirstContext + settings.signals.context_of(operation.signal);
  }
  switch (operation.kind) {
    case Kind::Send:
      return 2 * int64_t{operation.root_or_peer};
    case Kind::Recv:
      return 2 * int64_t{operation.root_or_peer} + 1;
    case Kind::PutSignal:
    case Kind::Signal:
      return -3 - int64_t{operation.root_or_peer};
    case Kind::WaitSignal:
      return -2;
    default:
      return -1;
  }
}

Task start(Communicator& comm, const Operation& operation, bool alone) {
  switch (operation.kind) {
    case Kind::Send:
      return run_send(comm, operation, alone);
    case Kind::Recv:
      return run_recv(comm, operation);
    case Kind::WindowRegister:
      return run_registration(comm, operation);
    case Kind::PutSignal:
    case Kind::Signal:
      return run_put(comm, operation);
    case Kind::WaitSignal:
      return run_wait(comm, operation);
    default:
      return run_collective(comm, operation);
  }
}

}  // namespace

void ProgressEngine::add(const Ref<Communicator>& comm, const Operation& operation,
                         const Ref<Window>& window) {
  size_t work = 0;
  while (work < works_.size() && !(works_[work].comm == comm)) ++work;
  if (work == works_.size()) {
    works_.emplace_back();
    works_.back().comm = comm;
  }
  operations_.emplace_back(work, queue_key(operation, comm->settings()), operation);
  if (window) puts_.emplace_back(window);
}

void ProgressEngine::take_sequences() noexcept {
  for (CommunicatorWork& work : works_) work.sequence = work.comm->order().take_sequence();
}

void ProgressEngine::add_orders(OperationOrders& orders) const {
  for (const CommunicatorWork& work : works_) orders.insert(&work.comm->order());
}

void ProgressEngine::clear() {
  queues_.clear();
  operations_.clear();
  works_.clear();
  puts_.clear();
  error_.reset();
}

std::optional<Error> ProgressEngine::run(const Creation* creation) {
  for (PeerQueue& queue : queues_) {
    const CommunicatorWork& work = works_[queue.work];
    queue.blocked = {work.comm->order().before(work.sequence), work.comm->rank()};
  }
  int ranks = 0;
  for (const CommunicatorWork& work : works_)
    ranks = std::max(ranks, work.comm->segment().competing_ranks());
  SpinBackoff backoff(ranks);
  Clock::time_point last_check;
  bool slept = false;
  while (unfinished_queues_ != 0) {
    if (advance_all()) {
      if (slept) WaitingThread::current().wake();
      backoff.reset();
      slept = false;
      continue;
    }
    if (!slept && backoff.wait([this] { return apart(); })) continue;
    if (!slept) {
      last_check = Clock::now();
      report_waits();
    }
    slept = true;
    sleep();
    end_if_given_up(creation);
    const auto now = Clock::now();
    const bool check_liveness = now - last_check >= kLivenessInterval;
    if (check_liveness) last_check = now;
    check_waits(check_liveness);
    end_if_deadlocked();
  }
  if (slept) WaitingThread::current().wake();
  puts_.clear();  // now their windows can be deregistered
  return std::move(error_);
}

void ProgressEngine::prepare() {
  const auto by_queue = [](const QueuedOperation& a, const QueuedOperation& b) {
    return a.work != b.work ? a.work < b.work : a.queue < b.queue;
  };
  if (!std::is_sorted(operations_.begin(), operations_.end(), by_queue)) {
    std::stable_sort(operations_.begin(), operations_.end(), by_queue);
  }
  size_t after = kNone;
  for (size_t i = 0; i < operations_.size(); ++i) {
    const bool same_queue = i > 0 && !by_queue(operations_[i - 1], operations_[i]);
    if (!same_queue) {
      CommunicatorWork& work = works_[operations_[i].work];
      ++work.unfinished_queues;
      PeerQueue& queue = queues_.emplace_back();
      queue.work = operations_[i].work;
      queue.next = i;
      if (i == 0 || operations_[i - 1].work != queue.work) after = kNone;
      queue.after = after;
      if (work.comm->settings().strict && is_one_sided(operations_[i].operation.kind)) {
        after = queues_.size() - 1;
      }
    }
    queues_.back().end = i + 1;
  }
  unfinished_queues_ = queues_.size();
  conditions_.reserve(queues_.size());
  waits_.reserve(queues_.size());  // no allocation can fail while operations run
}

bool ProgressEngine::advance_all() {
  bool moved = false;
  for (PeerQueue& queue : queues_) {
    if (!waiting(queue) || !queue.blocked.condition.met()) continue;
    moved = true;
    try {
      advance(queue);
    } catch (...) {
      fail_work(queue.work, found_in(queue, current_error()));
    }
  }
  return moved;
}

void ProgressEngine::advance(PeerQueue& queue) {
  CommunicatorWork& work = works_[queue.work];
  if (!work.begun) {
    work.comm->begin_operations();
    work.begun = true;
  }
  for (;;) {
    if (!queue.task) {
      if (queue.next == queue.end) return finish(queue);
      queue.task = start(*work.comm, operations_[queue.next++].operation, queues_.size() == 1);
    }
    if (!queue.task.resume()) {
      queue.blocked = queue.task.blocked();
      return;
    }
    queue.task.reset();
  }
}

void ProgressEngine::finish(PeerQueue& queue) {
  queue.finished = true;
  --unfinished_queues_;
  CommunicatorWork& work = works_[queue.work];
  if (--work.unfinished_queues != 0) return;
  if (work.begun) work.comm->end_operations();
  // Work that fails before earlier operations are complete does not complete its sequence number,
  // so all later operations fail as well.
  OperationOrder& order = work.comm->order();
  if (order.reached(work.sequence)) order.complete(work.sequence);
}

void ProgressEngine::fail_work(size_t index, const Error& error) {
  CommunicatorWork& work = works_[index];
  if (!work.failed) {
    work.failed = true;
    const Error failure = work.comm->fail_operation(error);
    if (!error_) {
      error_ = failure;
      error_->set_origin(work.comm.slot());
    }
  }
  for (PeerQueue& queue : queues_) {
    if (queue.work != index || queue.finished) continue;
    queue.task.reset();
    finish(queue);
  }
}

void ProgressEngine::sleep() {
  conditions_.clear();
  for (const PeerQueue& queue : queues_) {
    if (waiting(queue)) conditions_.push_back(queue.blocked.condition);
  }
  sleep_on(conditions_.data(), conditions_.size(), kMaxSleep);
}

// A rank that is interrupted, or gives up the creation, completes none of its operations. The other
// ranks get the reason.
void ProgressEngine::end_if_given_up(const Creation* creation) {
  const auto reason = creation ? creation->given_up() : interruption();
  if (!reason) return;
  // This rank may have been preempted since it last looked at the flags.
  const auto met = [](const WaitCondition& condition) { return condition.met(); };
  if (creation && std::ranges::any_of(conditions_, met)) return;
  for (size_t work = 0; work < works_.size(); ++work) {
    const Communicator& comm = *works_[work].comm;
    std::string text = comm.segment().name_of(comm.rank()) + " " + reason->text();
    if (creation) text += comm.why_it_waits().text("; it ");
    fail_work(work, Error(reason->code(), text));
  }
}

void ProgressEngine::end_if_deadlocked() {
  const std::optional<Error> deadlock = Deadlocks::check();
  if (!deadlock) return;
  for (size_t work = 0; work < works_.size(); ++work) fail_work(work, *deadlock);
}

// Whether all ranks that this one waits for were last seen on other CPUs. If not, it may move this
// thread, but oversubscribed ranks only while no other processes compete for the CPUs. Publishes
// its own CPU, except if it waits for earlier operations, which other threads run.
bool ProgressEngine::apart() {
  const int own = sched_getcpu() + 1;
  const bool contended = lost_slice_recently();
  for (const CommunicatorWork& work : works_) {
    if (work.begun) work.comm->segment().publish_cpu(work.comm->rank(), own, contended);
  }
  for (const PeerQueue& queue : queues_) {
    if (!waiting(queue)) continue;
    const Communicator& comm = *works_[queue.work].comm;
    const int owner = queue.blocked.owner;
    if (owner == comm.rank()) return false;  // another thread
    const int other = comm.segment().rank_state(owner).cpu.load(std::memory_order_relaxed);
    if (other == 0) return false;
    if (other != own) continue;
    const bool moves =
        spin_time().count() != 0 && (!contended || comm.segment().competing_ranks() == 0);
    return moves && comm.segment().move_to_other_cpu(comm.rank()) && apart();
  }
  return true;
}

void ProgressEngine::report_waits() {
  waits_.clear();
  for (const PeerQueue& queue : queues_) {
    if (!waiting(queue)) continue;
    Wait& wait = waits_.emplace_back(queue.blocked.condition);
    if (!queue.task) continue;  // the queue waits for earlier operations
    wait.comm = works_[queue.work].comm.get();
    wait.peer = queue.blocked.owner;
    wait.operation = operations_[queue.next - 1].operation;
  }
  WaitingThread::current().sleep(waits_);
}

// Ends the work of communicators that can no longer progress.
void ProgressEngine::check_waits(bool check_liveness) {
  for (PeerQueue& queue : queues_) {
    if (!waiting(queue) || queue.blocked.condition.met()) continue;
    try {
      check_wait(queue, check_liveness);
    } catch (...) {
      fail_work(queue.work, found_in(queue, current_error()));
    }
  }
}

// A step of a collective ends when all ranks have reached it. This rank waits for one after the
// other, so the first may only be late while another one has died.
void ProgressEngine::check_wait(const PeerQueue& queue, bool check_liveness) const {
  const Communicator& comm = *works_[queue.work].comm;
  if (!queue.task || !is_collective(operations_[queue.next - 1].operation.kind))
    return comm.state().check_wait(queue.blocked, check_liveness);
  for (int rank = 0; rank < comm.nranks(); ++rank) {
    const Blocked step{{&comm.segment().rank_state(rank).step, queue.blocked.condition.target},
                       rank};
    if (!step.condition.met()) comm.state().check_wait(step, check_liveness);
  }
}

// The failure of another rank, with the operation in which this rank detected it.
Error ProgressEngine::found_in(const PeerQueue& queue, const Error& error) const {
  const Communicator& comm = *works_[queue.work].comm;
  if (!queue.task || error.code() != abi::ncclRemoteError) return error;
  if (comm.segment().failed()) return comm.segment().failure();  // another rank detected it
  if (comm.state().stopped()) return error;
  return Error(error.code(),
               error.text() + " in " + to_text(operations_[queue.next - 1].operation));
}

void run_operation(const Ref<Communicator>& comm, const Operation& operation, uint32_t sequence,
                   const Creation* creation) {
  std::optional<Error> error;
  try {
    ProgressEngine engine;
    engine.add(comm, operation);
    engine.prepare();
    engine.set_sequence(sequence);
    error = engine.run(creation);
  } catch (...) {
    comm->state().fail(current_error());
    throw;
  }
  if (error) throw *error;
}

}  // namespace hostnccl
