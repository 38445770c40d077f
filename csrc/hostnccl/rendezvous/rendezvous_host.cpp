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
constexpr auto kCheckInterval = std::chrono::milliseconds(200);  // of the missing ranks
constexpr auto kGrace = std::chrono::milliseconds(700);  // for requests that are still to come
constexpr auto kRefuseLateJoiners = std::chrono::seconds(10);

Fd accept_one(int listener) {
  Fd accepted(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted && (errno == EMFILE || errno == ENFILE)) fail_errno("accept in the rendezvous");
  return accepted;
}

// Sends late joiners the reason of the refusal, for some time after the rendezvous.
void refuse_late_joiners(const Fd& listener, const Reply& reply) {
  const auto end = Clock::now() + kRefuseLateJoiners;
  std::vector<Fd> refused;  // stay open until the end: closing one early would drop its reply
  while (Clock::now() < end) {
    pollfd wait{listener.get(), POLLIN, 0};
    poll(&wait, 1, 10 * kPollMs);
    while (Fd joiner = accept_one(listener.get())) {
      send_reply(joiner.get(), reply);
      refused.push_back(std::move(joiner));
    }
  }
}

}  // namespace

RendezvousHost::RendezvousHost(Rendezvous& rendezvous, const RendezvousName& name, Fd listener)
    : rendezvous_(rendezvous),
      name_(name),
      self_(make_join_request(name, rendezvous.nranks_, rendezvous.rank_)),
      listener_(std::move(listener)),
      largest_nranks_(rendezvous.nranks_) {
  joined_.set(static_cast<size_t>(rendezvous.rank_));
}

std::shared_ptr<Segment> RendezvousHost::run() {
  try {
    collect_requests();
    return send_segment();
  } catch (...) {
    refuse(current_error());
  }
}

void RendezvousHost::collect_requests() {
  auto checked = Clock::now();
  while (requests_ < rendezvous_.nranks_) {
    rendezvous_.check_deadline();
    poll_once();
    if (requests_ == rendezvous_.nranks_ || Clock::now() - checked < kCheckInterval) continue;
    rendezvous_.check_missing();
    checked = Clock::now();
  }
}

void RendezvousHost::poll_once() {
  std::vector<pollfd> waits{{listener_.get(), POLLIN, 0}};
  for (const Joiner& joiner : joiners_) waits.push_back({joiner.connection.get(), POLLIN, 0});
  if (poll(waits.data(), waits.size(), kPollMs) <= 0) return;
  const int before = requests_;
  for (size_t i = 1; i < waits.size(); ++i) {
    if (waits[i].revents != 0) read_request(joiners_[i - 1]);
  }
  std::erase_if(joiners_, [](const Joiner& joiner) { return !joiner.connection; });
  accept_all();
  if (requests_ != before && !refusing_) send_progress();
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
  JoinRequest request;
  const Received received = receive_join_request(joiner.connection.get(), request);
  if (received == Received::Nothing) return;
  if (received == Received::Closed) {
    joiner.connection = Fd();
    if (!joiner.has_request || refusing_) return;
    fail(abi::ncclRemoteError, "rank %d (pid %d) %s before all ranks had joined; %s",
         joiner.request.rank, joiner.request.process.pid,
         is_alive_after_close(joiner.request.process) ? "gave up" : "died",
         rendezvous_.progress().c_str());
  }
  if (joiner.has_request) return;
  if (!is_join_request(request)) {
    joiner.connection = Fd();
    return;
  }
  joiner.request = request;
  joiner.has_request = true;
  ++requests_;
  largest_nranks_ = std::max(largest_nranks_, request.nranks);
  if (refusing_) return;
  check(request);
  joined_.set(static_cast<size_t>(request.rank));
  rendezvous_.set_joined(joined_);
}

void RendezvousHost::check_key(const JoinRequest& request) const {
  if (request.key == prove_key(name_, request.rank, request.process)) return;
  const bool has_own = self_.key != KeyProof{};
  const bool has_theirs = request.key != KeyProof{};
  fail(abi::ncclInvalidUsage,
       has_own && has_theirs
           ? "rank %d (pid %d) and rank %d (pid %d) have different encryption keys"
           : "rank %d (pid %d) has an encryption key (ncclSetEncryption), rank %d (pid %d) "
             "has none",
       has_own ? self_.rank : request.rank, has_own ? self_.process.pid : request.process.pid,
       has_own ? request.rank : self_.rank, has_own ? request.process.pid : self_.process.pid);
}

void RendezvousHost::check(const JoinRequest& request) const {
  if (request.protocol != kProtocol) {
    fail(abi::ncclInvalidUsage, "pid %d uses protocol %u of hostnccl, pid %d uses protocol %u",
         self_.process.pid, kProtocol, request.process.pid, request.protocol);
  }
  check_key(request);
  if (request.nranks != self_.nranks) {
    fail(abi::ncclInvalidUsage,
         "the ranks disagree about nranks: rank %d (pid %d) passes %d, rank %d (pid %d) passes %d",
         self_.rank, self_.process.pid, self_.nranks, request.rank, request.process.pid,
         request.nranks);
  }
  if (request.rank < 0 || request.rank >= self_.nranks) {
    fail(abi::ncclInvalidArgument, "rank %d of pid %d is not in [0, %d)", request.rank,
         request.process.pid, self_.nranks);
  }
  if (!joined_.test(static_cast<size_t>(request.rank))) return;
  ProcessId first = self_.process;
  if (request.rank != self_.rank) {
    const auto earlier = std::find_if(joiners_.begin(), joiners_.end(), [&](const Joiner& joiner) {
      return joiner.has_request && joiner.request.rank == request.rank;
    });
    first = earlier->request.process;  // joiners are in the order of their connections
  }
  fail(abi::ncclInvalidUsage, "rank %d is used twice: by pid %d and by pid %d", request.rank,
       first.pid, request.process.pid);
}

void RendezvousHost::send_to_joiners(const Reply& reply) const {
  for (const Joiner& joiner : joiners_) {
    if (joiner.has_request) send_reply(joiner.connection.get(), reply);
  }
}

void RendezvousHost::send_progress() const {
  Reply reply{};
  reply.kind = ReplyKind::Progress;
  reply.host_rank = self_.rank;
  reply.joined = joined_;
  for (const Joiner& joiner : joiners_) {
    if (joiner.has_request) try_send_reply(joiner.connection.get(), reply);
  }
}

std::shared_ptr<Segment> RendezvousHost::send_segment() {
  accept_all();  // a duplicate of a rank may have connected after the last request
  const Fd memory = make_memory_file("hostnccl", Segment::bytes(rendezvous_.nranks_));
  auto segment = map_segment(memory.get(), rendezvous_.nranks_, name_);
  segment->set_process(self_.rank, self_.process);
  for (const Joiner& joiner : joiners_) {
    if (joiner.has_request) segment->set_process(joiner.request.rank, joiner.request.process);
  }
  Reply reply{};
  reply.kind = ReplyKind::Accepted;
  reply.host_rank = self_.rank;
  for (const Joiner& joiner : joiners_) {
    // A joiner that is gone by now is detected at the first barrier.
    if (joiner.has_request) send_reply(joiner.connection.get(), reply, memory.get());
  }
  return segment;
}

void RendezvousHost::refuse(const Error& reason) {
  refusing_ = true;
  const auto end = Clock::now() + (reason.code() == abi::ncclTimeout ? Clock::duration() : kGrace);
  while (requests_ < largest_nranks_ && Clock::now() < end) poll_once();
  const Error shared_reason = reason.code() == abi::ncclInvalidUsage && rendezvous_.cancelled_
                                  ? Error(abi::ncclRemoteError, reason.text())
                                  : reason;
  const Reply reply = Reply::refusal(shared_reason);
  send_to_joiners(reply);
  try {
    start_thread(
        [listener = std::move(listener_), reply] { refuse_late_joiners(listener, reply); });
  } catch (const std::system_error&) {
    // Without the thread, late joiners wait until their own deadlines.
  }
  throw reason;
}

}  // namespace hostnccl
