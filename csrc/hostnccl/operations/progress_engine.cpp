#include "hostnccl/operations/progress_engine.h"

#include <algorithm>

#include "hostnccl/operations/collective.h"
#include "hostnccl/operations/one_sided.h"
#include "hostnccl/operations/p2p.h"
#include "hostnccl/operations/window_registration.h"

namespace hostnccl {
namespace {

constexpr auto kCeiling = std::chrono::milliseconds(50);        // of a sleep, between two checks
constexpr auto kLifeInterval = std::chrono::milliseconds(200);  // between two looks at processes

int64_t queue_key(const Operation& operation) {
  switch (operation.kind) {
    case Kind::Send:
      return 2 * int64_t{operation.root};
    case Kind::Recv:
      return 2 * int64_t{operation.root} + 1;
    case Kind::PutSignal:
    case Kind::Signal:
      return -3 - int64_t{operation.root};
    case Kind::WaitSignal:
      return -2;
    default:
      return -1;
  }
}

Task start(Communicator& comm, const Operation& operation) {
  switch (operation.kind) {
    case Kind::Send:
      return run_send(comm, operation);
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
  size_t part = 0;
  while (part < parts_.size() && !(parts_[part].comm == comm)) ++part;
  if (part == parts_.size()) {
    parts_.emplace_back();
    parts_.back().comm = comm;
  }
  steps_.emplace_back(part, queue_key(operation), operation);
  if (window) windows_.push_back(window);
}

void ProgressEngine::take_tickets() {
  for (Part& part : parts_) part.sequence = part.comm->take_sequence();
}

void ProgressEngine::clear() {
  queues_.clear();
  steps_.clear();
  parts_.clear();
  windows_.clear();
  error_.reset();
}

std::optional<Error> ProgressEngine::run() {
  make_queues();
  bool oversubscribed = false;
  for (const Part& part : parts_)
    oversubscribed = oversubscribed || part.comm->segment().oversubscribed();
  SpinBackoff backoff(oversubscribed);
  Clock::time_point looked;
  bool slept = false;
  while (unfinished_ != 0) {
    if (advance_all()) {
      backoff.reset();
      slept = false;
      continue;
    }
    if (!slept && backoff.wait()) continue;
    if (!slept) looked = Clock::now();
    slept = true;
    sleep();
    const auto now = Clock::now();
    const bool look = now - looked >= kLifeInterval;
    if (look) looked = now;
    check_all(look);
  }
  return std::move(error_);
}

void ProgressEngine::make_queues() {
  const auto order = [](const Step& a, const Step& b) {
    return a.part != b.part ? a.part < b.part : a.queue < b.queue;
  };
  if (!std::is_sorted(steps_.begin(), steps_.end(), order)) {
    std::stable_sort(steps_.begin(), steps_.end(), order);
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    const bool goes_on = i > 0 && !order(steps_[i - 1], steps_[i]);
    if (!goes_on) {
      Part& part = parts_[steps_[i].part];
      ++part.unfinished;
      PeerQueue& queue = queues_.emplace_back();
      queue.part = steps_[i].part;
      queue.next = i;
      queue.blocked = {{&part.comm->completed(), part.sequence}, part.comm->rank()};
    }
    queues_.back().end = i + 1;
  }
  unfinished_ = queues_.size();
}

bool ProgressEngine::advance_all() {
  bool moved = false;
  for (PeerQueue& queue : queues_) {
    if (queue.finished || !queue.blocked.condition.met()) continue;
    moved = true;
    const size_t part = queue.part;
    try {
      advance(queue);
    } catch (...) {
      fail_part(part, current_error());
    }
  }
  return moved;
}

void ProgressEngine::advance(PeerQueue& queue) {
  Part& part = parts_[queue.part];
  if (!part.begun) {
    part.comm->begin();
    part.begun = true;
  }
  for (;;) {
    if (!queue.task) {
      if (queue.next == queue.end) return finish(queue);
      queue.task = start(*part.comm, steps_[queue.next++].operation);
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
  --unfinished_;
  Part& part = parts_[queue.part];
  if (--part.unfinished != 0) return;
  if (part.begun) part.comm->end();
  // A part that fails before its turn leaves the order alone: all that come after it fail too.
  if (part.comm->completed().reached(part.sequence))
    part.comm->completed().signal(part.sequence + 1);
}

void ProgressEngine::fail_part(size_t index, const Error& error) {
  Part& part = parts_[index];
  if (!part.failed) {
    part.failed = true;
    part.comm->fail(error);
    if (!error_) error_ = part.comm->error();
  }
  for (PeerQueue& queue : queues_) {
    if (queue.part != index || queue.finished) continue;
    queue.task.reset();
    finish(queue);
  }
}

void ProgressEngine::sleep() {
  conditions_.clear();
  for (const PeerQueue& queue : queues_) {
    if (!queue.finished) conditions_.push_back(queue.blocked.condition);
  }
  sleep_on(conditions_.data(), conditions_.size(), kCeiling);
}

// Ends the parts of communicators that can no longer go on.
void ProgressEngine::check_all(bool look_for_life) {
  for (PeerQueue& queue : queues_) {
    if (queue.finished || queue.blocked.condition.met()) continue;
    const size_t part = queue.part;
    try {
      parts_[part].comm->check_wait(queue.blocked, look_for_life);
    } catch (...) {
      fail_part(part, current_error());
    }
  }
}

}  // namespace hostnccl
