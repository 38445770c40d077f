#include "hostnccl/meeting_host.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "hostnccl/memory_file.h"
#include "hostnccl/thread.h"

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

MeetingHost::MeetingHost(Rendezvous& own, const MeetingName& name, Fd listener)
    : own_(own),
      name_(name),
      self_(make_hello(name, own.nranks_, own.rank_)),
      listener_(std::move(listener)),
      most_claimed_(own.nranks_) {
  arrivals_.set(static_cast<size_t>(own.rank_));
}

std::shared_ptr<World> MeetingHost::run() {
  try {
    gather();
    return hand_out();
  } catch (...) {
    refuse(current_error());
  }
}

void MeetingHost::gather() {
  auto looked = Clock::now();
  while (arrived_ < own_.nranks_) {
    own_.check_patience();
    receive();
    if (arrived_ == own_.nranks_ || Clock::now() - looked < kLook) continue;
    own_.check_missing();
    looked = Clock::now();
  }
}

void MeetingHost::receive() {
  std::vector<pollfd> waits{{listener_.get(), POLLIN, 0}};
  for (const Guest& guest : guests_) waits.push_back({guest.connection.get(), POLLIN, 0});
  if (poll(waits.data(), waits.size(), kPollMs) <= 0) return;
  const int before = arrived_;
  for (size_t i = 1; i < waits.size(); ++i) {
    if (waits[i].revents != 0) hear(guests_[i - 1]);
  }
  std::erase_if(guests_, [](const Guest& guest) { return !guest.connection; });
  accept_all();
  if (arrived_ != before && !refusing_) tell_progress();
}

void MeetingHost::accept_all() {
  while (Fd connection = accept_one(listener_.get())) {
    if (!peer_is_same_user(connection.get())) continue;
    guests_.push_back({std::move(connection), {}, false});
    hear(guests_.back());
  }
  std::erase_if(guests_, [](const Guest& guest) { return !guest.connection; });
}

void MeetingHost::hear(Guest& guest) {
  Hello hello;
  const Received received = receive_hello(guest.connection.get(), hello);
  if (received == Received::Nothing) return;
  if (received == Received::Closed) {
    guest.connection = Fd();
    if (!guest.said_hello || refusing_) return;
    fail(abi::ncclRemoteError, "rank %d (pid %d) %s before all ranks had arrived; %s",
         guest.hello.rank, guest.hello.process.pid,
         stays_alive(guest.hello.process) ? "gave up" : "died", own_.progress().c_str());
  }
  if (guest.said_hello) return;
  if (!is_hello(hello)) {
    guest.connection = Fd();
    return;
  }
  guest.hello = hello;
  guest.said_hello = true;
  ++arrived_;
  most_claimed_ = std::max(most_claimed_, hello.nranks);
  if (refusing_) return;
  check(hello);
  arrivals_.set(static_cast<size_t>(hello.rank));
  own_.note(arrivals_);
}

void MeetingHost::check_key(const Hello& hello) const {
  if (hello.key == prove_key(name_, hello.rank, hello.process)) return;
  const bool here = self_.key != KeyProof{};
  const bool there = hello.key != KeyProof{};
  fail(abi::ncclInvalidUsage,
       here && there
           ? "rank %d (pid %d) and rank %d (pid %d) have different encryption keys"
           : "rank %d (pid %d) has an encryption key (ncclSetEncryption), rank %d (pid %d) "
             "has none",
       here ? self_.rank : hello.rank, here ? self_.process.pid : hello.process.pid,
       here ? hello.rank : self_.rank, here ? hello.process.pid : self_.process.pid);
}

void MeetingHost::check(const Hello& hello) const {
  if (hello.protocol != kProtocol) {
    fail(abi::ncclInvalidUsage, "pid %d uses protocol %u of hostnccl, pid %d uses protocol %u",
         self_.process.pid, kProtocol, hello.process.pid, hello.protocol);
  }
  check_key(hello);
  if (hello.nranks != self_.nranks) {
    fail(abi::ncclInvalidUsage,
         "the ranks disagree about nranks: %d says rank %d (pid %d), %d says rank %d (pid %d)",
         self_.nranks, self_.rank, self_.process.pid, hello.nranks, hello.rank, hello.process.pid);
  }
  if (hello.rank < 0 || hello.rank >= self_.nranks) {
    fail(abi::ncclInvalidArgument, "rank %d of pid %d is not in [0, %d)", hello.rank,
         hello.process.pid, self_.nranks);
  }
  if (!arrivals_.test(static_cast<size_t>(hello.rank))) return;
  ProcessId first = self_.process;
  if (hello.rank != self_.rank) {
    const auto earlier = std::find_if(guests_.begin(), guests_.end(), [&](const Guest& guest) {
      return guest.said_hello && guest.hello.rank == hello.rank;
    });
    first = earlier->hello.process;  // guests are in the order in which they came
  }
  fail(abi::ncclInvalidUsage, "rank %d is used twice: by pid %d and by pid %d", hello.rank,
       first.pid, hello.process.pid);
}

void MeetingHost::tell_reason(const Reply& reply) const {
  for (const Guest& guest : guests_) {
    if (guest.said_hello) send_answer(guest.connection.get(), reply);
  }
}

void MeetingHost::tell_progress() const {
  Reply reply{};
  reply.answer = Answer::Progress;
  reply.host_rank = self_.rank;
  reply.arrivals = arrivals_;
  for (const Guest& guest : guests_) {
    if (guest.said_hello) send_news(guest.connection.get(), reply);
  }
}

std::shared_ptr<World> MeetingHost::hand_out() {
  accept_all();  // a rank used twice may have come behind the last one
  const Fd memory = make_memory_file("hostnccl", World::bytes(own_.nranks_));
  auto world = map_world(memory.get(), own_.nranks_, name_);
  world->set_process(self_.rank, self_.process);
  for (const Guest& guest : guests_) {
    if (guest.said_hello) world->set_process(guest.hello.rank, guest.hello.process);
  }
  Reply reply{};
  reply.answer = Answer::Accepted;
  reply.host_rank = self_.rank;
  for (const Guest& guest : guests_) {
    // One that is gone by now will be missed at the first barrier.
    if (guest.said_hello) send_answer(guest.connection.get(), reply, memory.get());
  }
  return world;
}

void MeetingHost::refuse(const Error& reason) {
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
