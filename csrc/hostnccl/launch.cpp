#include "hostnccl/launch.h"

#include <algorithm>

#include "hostnccl/collective.h"
#include "hostnccl/one_sided.h"
#include "hostnccl/p2p.h"
#include "hostnccl/window_registration.h"

namespace hostnccl {
namespace {

constexpr auto kCeiling = std::chrono::milliseconds(50);        // of a sleep, between two checks
constexpr auto kLifeInterval = std::chrono::milliseconds(200);  // between two looks at processes

int64_t strand_key(const Operation& operation) {
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

void Launch::add(const Ref<Communicator>& comm, const Operation& operation,
                 const Ref<Window>& window) {
  size_t part = 0;
  while (part < parts_.size() && !(parts_[part].comm == comm)) ++part;
  if (part == parts_.size()) {
    parts_.emplace_back();
    parts_.back().comm = comm;
  }
  steps_.emplace_back(part, strand_key(operation), operation);
  if (window) windows_.push_back(window);
}

void Launch::take_tickets() {
  for (Part& part : parts_) part.ticket = part.comm->take_ticket();
}

void Launch::clear() {
  strands_.clear();
  steps_.clear();
  parts_.clear();
  windows_.clear();
  error_.reset();
}

std::optional<Error> Launch::run() {
  make_strands();
  bool crowded = false;
  for (const Part& part : parts_) crowded = crowded || part.comm->world().crowded();
  Patience patience(crowded);
  Clock::time_point looked;
  bool slept = false;
  while (unfinished_ != 0) {
    if (advance_all()) {
      patience.renew();
      slept = false;
      continue;
    }
    if (!slept && patience.wait()) continue;
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

void Launch::make_strands() {
  const auto order = [](const Step& a, const Step& b) {
    return a.part != b.part ? a.part < b.part : a.strand < b.strand;
  };
  if (!std::is_sorted(steps_.begin(), steps_.end(), order)) {
    std::stable_sort(steps_.begin(), steps_.end(), order);
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    const bool goes_on = i > 0 && !order(steps_[i - 1], steps_[i]);
    if (!goes_on) {
      Part& part = parts_[steps_[i].part];
      ++part.unfinished;
      Strand& strand = strands_.emplace_back();
      strand.part = steps_[i].part;
      strand.next = i;
      strand.blocked = {{&part.comm->completed(), part.ticket}, part.comm->rank()};
    }
    strands_.back().end = i + 1;
  }
  unfinished_ = strands_.size();
}

bool Launch::advance_all() {
  bool moved = false;
  for (Strand& strand : strands_) {
    if (strand.finished || !strand.blocked.wanted.arrived()) continue;
    moved = true;
    const size_t part = strand.part;
    try {
      advance(strand);
    } catch (...) {
      fail_part(part, current_error());
    }
  }
  return moved;
}

void Launch::advance(Strand& strand) {
  Part& part = parts_[strand.part];
  if (!part.begun) {
    part.comm->begin();
    part.begun = true;
  }
  for (;;) {
    if (!strand.task) {
      if (strand.next == strand.end) return finish(strand);
      strand.task = start(*part.comm, steps_[strand.next++].operation);
    }
    if (!strand.task.resume()) {
      strand.blocked = strand.task.blocked();
      return;
    }
    strand.task.reset();
  }
}

void Launch::finish(Strand& strand) {
  strand.finished = true;
  --unfinished_;
  Part& part = parts_[strand.part];
  if (--part.unfinished != 0) return;
  if (part.begun) part.comm->end();
  // A part that fails before its turn leaves the order alone: all that come after it fail too.
  if (part.comm->completed().reached(part.ticket)) part.comm->completed().raise(part.ticket + 1);
}

void Launch::fail_part(size_t index, const Error& error) {
  Part& part = parts_[index];
  if (!part.failed) {
    part.failed = true;
    part.comm->fail(error);
    if (!error_) error_ = part.comm->error();
  }
  for (Strand& strand : strands_) {
    if (strand.part != index || strand.finished) continue;
    strand.task.reset();
    finish(strand);
  }
}

void Launch::sleep() {
  wanted_.clear();
  for (const Strand& strand : strands_) {
    if (!strand.finished) wanted_.push_back(strand.blocked.wanted);
  }
  sleep_on(wanted_.data(), wanted_.size(), kCeiling);
}

// Ends the parts of communicators that can no longer go on.
void Launch::check_all(bool look_for_life) {
  for (Strand& strand : strands_) {
    if (strand.finished || strand.blocked.wanted.arrived()) continue;
    const size_t part = strand.part;
    try {
      parts_[part].comm->check_wait(strand.blocked, look_for_life);
    } catch (...) {
      fail_part(part, current_error());
    }
  }
}

}  // namespace hostnccl
