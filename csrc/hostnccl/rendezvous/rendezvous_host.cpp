#include "hostnccl/rendezvous/rendezvous_host.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <thread>

#include "hostnccl/rendezvous/refusal.h"

namespace hostnccl {
namespace {

constexpr int kHostPollMs = 50;
constexpr auto kGuestCheckInterval = std::chrono::milliseconds(200);  // of processes
constexpr auto kProgressInterval =
    std::chrono::milliseconds(20);                       // ranks that come together wake nobody
constexpr auto kGrace = std::chrono::milliseconds(700);  // for requests that are still to come

// Waits some seconds if the receiver's queue is full, or too many descriptors are under way. False,
// with errno, if it cannot be sent.
template <typename T>
bool deliver(int connection, const T& message, int passed_fd = -1) {
  const auto end = Clock::now() + std::chrono::seconds(5);
  while (!send_message(connection, message, passed_fd)) {
    if ((errno != EAGAIN && errno != ETOOMANYREFS) || Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::string name_of(const JoinRequest& request) {
  return format("rank %d (pid %d)", request.rank, int(request.pid));
}

}  // namespace

RendezvousHost::RendezvousHost(Rendezvous& rendezvous, const RendezvousKey& key, Fd listener)
    : rendezvous_(rendezvous),
      key_(key),
      self_(make_join_request(key, rendezvous.nranks_, rendezvous.rank_)),
      listener_(JoinListener(std::move(listener), key)),
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
  file_ = Segment::make_file(rendezvous_.nranks_);  // while the others connect
  auto checked = Clock::now();
  int told = 0;  // requests_ of the last progress
  while (requests_ < rendezvous_.nranks_) {
    rendezvous_.check_given_up();
    poll_once();
    const auto now = Clock::now();
    if (requests_ != told && now - checked >= kProgressInterval) {
      send_progress();
      told = requests_;
    }
    if (requests_ == rendezvous_.nranks_ || now - checked < kGuestCheckInterval) continue;
    check_processes();
    rendezvous_.check_missing();
    checked = now;
  }
}

void RendezvousHost::poll_once() {
  std::vector<pollfd> waits;
  waits.reserve(joiners_.size() + 1);
  for (const Joiner& joiner : joiners_) waits.push_back({joiner.connection.get(), POLLIN, 0});
  listener_->add_to(waits);
  poll(waits.data(), waits.size(), kHostPollMs);
  const size_t connected = joiners_.size();
  for (size_t i = 0; i < connected; ++i) {
    if (waits[i].revents != 0) read_messages(joiners_[i]);
  }
  accept();
  std::erase_if(joiners_, [](const Joiner& joiner) { return !joiner.connection; });
}

void RendezvousHost::accept() {
  for (Fd& connection : listener_->advance()) {
    joiners_.emplace_back().connection = std::move(connection);
    read_messages(joiners_.back());
  }
}

void RendezvousHost::read_messages(Joiner& joiner) {
  Message message;
  while (joiner.connection) {
    const Received received = receive_message(joiner.connection.get(), message);
    if (received == Received::Nothing) return;
    if (received == Received::Closed) return note_closed(joiner);
    if (const auto* request = std::get_if<JoinRequest>(&message)) {
      note_request(joiner, *request);
    } else if (const auto* failure = std::get_if<Failure>(&message)) {
      note_failure(*failure);
    }
  }
}

void RendezvousHost::note_closed(Joiner& joiner) {
  joiner.connection = Fd();
  if (!joiner.has_request || refusing_) return;
  fail_joiner(joiner, is_alive_after_close(joiner.request.process()) ? "gave up" : "died");
}

// A joiner gives up, or an earlier rendezvous of this id has failed, without this rank.
void RendezvousHost::note_failure(const Failure& failure) const {
  if (!refusing_) throw failure.error();
}

void RendezvousHost::fail_joiner(const Joiner& joiner, const char* how) const {
  fail(abi::ncclRemoteError, "%s %s before all ranks had joined; %s",
       name_of(joiner.request).c_str(), how, rendezvous_.progress().c_str());
}

void RendezvousHost::note_request(Joiner& joiner, const JoinRequest& request) {
  if (joiner.has_request) return;
  joiner.request = request;
  joiner.has_request = true;
  ++requests_;
  largest_nranks_ = std::max(largest_nranks_, request.nranks);
  if (refusing_) return;
  check(request);
  joined_.set(static_cast<size_t>(request.rank));
  rendezvous_.joined_.set(joined_);
}

void RendezvousHost::check_key(const JoinRequest& request) const {
  if (same_proof(request.key, prove_key(key_, request.rank, request.process()))) return;
  const bool has_own = self_.key != KeyProof{};
  const bool has_theirs = request.key != KeyProof{};
  fail(abi::ncclInvalidUsage,
       has_own && has_theirs ? "%s and %s have different encryption keys"
                             : "%s has an encryption key (ncclSetEncryption), %s has none",
       name_of(has_own ? self_ : request).c_str(), name_of(has_own ? request : self_).c_str());
}

void RendezvousHost::check(const JoinRequest& request) const {
  check_key(request);
  if (request.nranks != self_.nranks) {
    fail(abi::ncclInvalidUsage, "the ranks disagree about nranks: %s passes %d, %s passes %d",
         name_of(self_).c_str(), self_.nranks, name_of(request).c_str(), request.nranks);
  }
  if (!joined_.test(static_cast<size_t>(request.rank))) return;
  const JoinRequest* first = &self_;
  if (request.rank != self_.rank) {
    const auto earlier = std::find_if(joiners_.begin(), joiners_.end(), [&](const Joiner& joiner) {
      return joiner.has_request && joiner.request.rank == request.rank;
    });
    first = &earlier->request;  // joiners are in the order of their connections
  }
  fail(abi::ncclInvalidUsage, "rank %d is used twice: by pid %d and by pid %d", request.rank,
       int(first->pid), int(request.pid));
}

// A connection outlives its process in the processes that it has forked.
void RendezvousHost::check_processes() const {
  for (const Joiner& joiner : joiners_) {
    if (!joiner.has_request || is_alive(joiner.request.process())) continue;
    fail_joiner(joiner, "died");
  }
}

void RendezvousHost::send_progress() const {
  Progress progress{};
  progress.host_rank = self_.rank;
  progress.joined = joined_;
  for (const Joiner& joiner : joiners_) {  // dropped if the receiver's queue is full
    if (joiner.has_request) send_message(joiner.connection.get(), progress);
  }
}

std::shared_ptr<Segment> RendezvousHost::send_segment() {
  accept();  // a duplicate of a rank may have connected after the last request
  auto segment = map_segment(file_, rendezvous_.nranks_, key_);
  segment->set_process(self_.rank, self_.process());
  for (const Joiner& joiner : joiners_) {
    if (joiner.has_request) segment->set_process(joiner.request.rank, joiner.request.process());
  }
  for (const Joiner& joiner : joiners_) {
    // A joiner that is gone by now is detected at the first barrier.
    if (!joiner.has_request || deliver(joiner.connection.get(), Accepted(), file_.get()) ||
        errno == EPIPE || errno == ECONNRESET) {
      continue;
    }
    const Error error(abi::ncclSystemError, "the memory of the communicator cannot be sent to " +
                                                name_of(joiner.request) + ": " +
                                                std::system_category().message(errno));
    segment->fail(error);
    throw error;
  }
  listener_.reset();
  return segment;
}

// A joiner closes its connection when it has mapped the segment.
void RendezvousHost::check_joiners() const {
  for (const Joiner& joiner : joiners_) {
    Message message;
    if (receive_message(joiner.connection.get(), message) != Received::Message) continue;
    if (const auto* failure = std::get_if<Failure>(&message)) throw failure->error();
  }
}

void RendezvousHost::refuse(const Error& reason) {
  refusing_ = true;
  const bool given_up = rendezvous_.creation_.given_up().has_value();
  const bool at_once = given_up || reason.code() == abi::ncclTimeout;
  const auto end = Clock::now() + kGrace;
  const auto more_to_come = [&] {
    return at_once ? listener_->has_pending() : requests_ < largest_nranks_;
  };
  const Failure failure = Failure::of(reason);
  try {
    accept();
    while (more_to_come() && Clock::now() < end) poll_once();
  } catch (const Error&) {
    // No free descriptor: those that have joined get the reason.
  }
  for (const Joiner& joiner : joiners_) {
    if (joiner.connection) deliver(joiner.connection.get(), failure);
  }
  if (!given_up) refuse_late_ranks(key_, reason, std::move(listener_));
  throw reason;
}

}  // namespace hostnccl
