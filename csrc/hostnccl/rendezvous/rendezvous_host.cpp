#include "hostnccl/rendezvous/rendezvous_host.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "hostnccl/base/memory_file.h"
#include "hostnccl/base/thread.h"

namespace hostnccl {
namespace {

constexpr int kPollMs = 50;
constexpr auto kLook = std::chrono::milliseconds(200);   // between two looks for the missing
constexpr auto kGrace = std::chrono::milliseconds(700);  // for those still on their way
constexpr auto kAnswerLateOnes = std::chrono::seconds(10);

Fd accept_one(int listener) {
  Fd accepted(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted && (errno == EMFILE || errno == ENFILE)) fail_errno("accept in the rendezvous");
  return accepted;
}

// Tells whoever comes late why it failed, for a while after the meeting.
void answer_late_ones(const Fd& listener, const Reply& reply) {
  const auto end = Clock::now() + kAnswerLateOnes;
  std::vector<Fd> answered;  // kept open until the end: closing early would drop the answer
  while (Clock::now() < end) {
    pollfd wait{listener.get(), POLLIN, 0};
    poll(&wait, 1, 10 * kPollMs);
    while (Fd late = accept_one(listener.get())) {
      send_answer(late.get(), reply);
      answered.push_back(std::move(late));
    }
  }
}

}  // namespace

RendezvousHost::RendezvousHost(Rendezvous& own, const RendezvousName& name, Fd listener)
    : own_(own),
      name_(name),
      self_(make_join_request(name, own.nranks_, own.rank_)),
      listener_(std::move(listener)),
      most_claimed_(own.nranks_) {
  arrivals_.set(static_cast<size_t>(own.rank_));
}

std::shared_ptr<Segment> RendezvousHost::run() {
  try {
    gather();
    return hand_out();
  } catch (...) {
    refuse(current_error());
  }
}

void RendezvousHost::gather() {
  auto looked = Clock::now();
  while (arrived_ < own_.nranks_) {
    own_.check_patience();
    receive();
    if (arrived_ == own_.nranks_ || Clock::now() - looked < kLook) continue;
    own_.check_missing();
    looked = Clock::now();
  }
}

void RendezvousHost::receive() {
  std::vector<pollfd> waits{{listener_.get(), POLLIN, 0}};
  for (const Joiner& joiner : joiners_) waits.push_back({joiner.connection.get(), POLLIN, 0});
  if (poll(waits.data(), waits.size(), kPollMs) <= 0) return;
  const int before = arrived_;
  for (size_t i = 1; i < waits.size(); ++i) {
    if (waits[i].revents != 0) read_request(joiners_[i - 1]);
  }
  std::erase_if(joiners_, [](const Joiner& joiner) { return !joiner.connection; });
  accept_all();
  if (arrived_ != before && !refusing_) tell_progress();
}

void RendezvousHost::accept_all() {
  while (Fd connection = accept_one(listener_.get())) {
    if (!peer_is_same_user(connection.get())) continue;
    joiners_.push_back({std::move(connection), {}, false});
    read_request(joiners_.back());
  }
  std::erase_if(joiners_, [](const Joiner& joiner) { return !joiner.connection; });
}

void RendezvousHost::read_request(Joiner& joiner) {
  JoinRequest join_request;
  const Received received = receive_join_request(joiner.connection.get(), join_request);
  if (received == Received::Nothing) return;
  if (received == Received::Closed) {
    joiner.connection = Fd();
    if (!joiner.said_join_request || refusing_) return;
    fail(abi::ncclRemoteError, "rank %d (pid %d) %s before all ranks had arrived; %s",
         joiner.join_request.rank, joiner.join_request.process.pid,
         is_alive_after_close(joiner.join_request.process) ? "gave up" : "died", own_.progress().c_str());
  }
  if (joiner.said_join_request) return;
  if (!is_join_request(join_request)) {
    joiner.connection = Fd();
    return;
  }
  joiner.join_request = join_request;
  joiner.said_join_request = true;
  ++arrived_;
  most_claimed_ = std::max(most_claimed_, join_request.nranks);
  if (refusing_) return;
  check(join_request);
  arrivals_.set(static_cast<size_t>(join_request.rank));
  own_.note(arrivals_);
}

void RendezvousHost::check_key(const JoinRequest& join_request) const {
  if (join_request.key == prove_key(name_, join_request.rank, join_request.process)) return;
  const bool here = self_.key != KeyProof{};
  const bool there = join_request.key != KeyProof{};
  fail(abi::ncclInvalidUsage,
       here && there
           ? "rank %d (pid %d) and rank %d (pid %d) have different encryption keys"
           : "rank %d (pid %d) has an encryption key (ncclSetEncryption), rank %d (pid %d) "
             "has none",
       here ? self_.rank : join_request.rank, here ? self_.process.pid : join_request.process.pid,
       here ? join_request.rank : self_.rank, here ? join_request.process.pid : self_.process.pid);
}

void RendezvousHost::check(const JoinRequest& join_request) const {
  if (join_request.protocol != kProtocol) {
    fail(abi::ncclInvalidUsage, "pid %d uses protocol %u of hostnccl, pid %d uses protocol %u",
         self_.process.pid, kProtocol, join_request.process.pid, join_request.protocol);
  }
  check_key(join_request);
  if (join_request.nranks != self_.nranks) {
    fail(abi::ncclInvalidUsage,
         "the ranks disagree about nranks: %d says rank %d (pid %d), %d says rank %d (pid %d)",
         self_.nranks, self_.rank, self_.process.pid, join_request.nranks, join_request.rank,
         join_request.process.pid);
  }
  if (join_request.rank < 0 || join_request.rank >= self_.nranks) {
    fail(abi::ncclInvalidArgument, "rank %d of pid %d is not in [0, %d)", join_request.rank,
         join_request.process.pid, self_.nranks);
  }
  if (!arrivals_.test(static_cast<size_t>(join_request.rank))) return;
  ProcessId first = self_.process;
  if (join_request.rank != self_.rank) {
    const auto earlier = std::find_if(joiners_.begin(), joiners_.end(), [&](const Joiner& joiner) {
      return joiner.said_join_request && joiner.join_request.rank == join_request.rank;
    });
    first = earlier->join_request.process;  // guests are in the order in which they came
  }
  fail(abi::ncclInvalidUsage, "rank %d is used twice: by pid %d and by pid %d", join_request.rank,
       first.pid, join_request.process.pid);
}

void RendezvousHost::tell_reason(const Reply& reply) const {
  for (const Joiner& joiner : joiners_) {
    if (joiner.said_join_request) send_answer(joiner.connection.get(), reply);
  }
}

void RendezvousHost::tell_progress() const {
  Reply reply{};
  reply.answer = Answer::Progress;
  reply.host_rank = self_.rank;
  reply.arrivals = arrivals_;
  for (const Joiner& joiner : joiners_) {
    if (joiner.said_join_request) send_news(joiner.connection.get(), reply);
  }
}

std::shared_ptr<Segment> RendezvousHost::hand_out() {
  accept_all();  // a rank used twice may have come behind the last one
  const Fd memory = make_memory_file("hostnccl", Segment::bytes(own_.nranks_));
  auto segment = map_segment(memory.get(), own_.nranks_, name_);
  segment->set_process(self_.rank, self_.process);
  for (const Joiner& joiner : joiners_) {
    if (joiner.said_join_request)
      segment->set_process(joiner.join_request.rank, joiner.join_request.process);
  }
  Reply reply{};
  reply.answer = Answer::Accepted;
  reply.host_rank = self_.rank;
  for (const Joiner& joiner : joiners_) {
    // One that is gone by now will be missed at the first barrier.
    if (joiner.said_join_request) send_answer(joiner.connection.get(), reply, memory.get());
  }
  return segment;
}

void RendezvousHost::refuse(const Error& reason) {
  refusing_ = true;
  const auto end = Clock::now() + (reason.code() == abi::ncclTimeout ? Clock::duration() : kGrace);
  while (arrived_ < most_claimed_ && Clock::now() < end) receive();
  const Error for_all = reason.code() == abi::ncclInvalidUsage && own_.cancelled_
                            ? Error(abi::ncclRemoteError, reason.text())
                            : reason;
  const Reply reply = Reply::refusal(for_all);
  tell_reason(reply);
  try {
    start_thread([listener = std::move(listener_), reply] { answer_late_ones(listener, reply); });
  } catch (const std::system_error&) {
    // No thread to be had: late ones will wait for their own deadlines.
  }
  throw reason;
}

}  // namespace hostnccl
