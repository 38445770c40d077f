#include "hostnccl/rendezvous/rendezvous.h"

#include <map>
#include <mutex>
#include <thread>

#include "hostnccl/rendezvous/handshake.h"
#include "hostnccl/rendezvous/refusal.h"
#include "hostnccl/rendezvous/rendezvous_host.h"

namespace hostnccl {
namespace {

constexpr int kGuestPollMs = 50;
constexpr auto kHostCheckInterval = std::chrono::milliseconds(200);  // of the host's process

// The segments that this process has mapped, by the keys of their rendezvous.
struct Rendezvouses {
  std::mutex mutex;
  std::map<RendezvousKey, std::weak_ptr<Segment>> segments;
};

Rendezvouses& rendezvouses() {
  static Rendezvouses& instance = *new Rendezvouses;  // outlives every thread
  return instance;
}

void forbid_second_use(const RendezvousKey& key) {
  Rendezvouses& all = rendezvouses();
  const std::lock_guard lock(all.mutex);
  const auto found = all.segments.find(key);
  if (found != all.segments.end() && !found->second.expired()) {
    fail(abi::ncclInvalidUsage, "commId has already made a communicator, which has all its ranks");
  }
}

}  // namespace

std::shared_ptr<Segment> map_segment(const Fd& file, int nranks, const RendezvousKey& key) {
  Rendezvouses& all = rendezvouses();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.segments, [](const auto& item) { return item.second.expired(); });
  std::weak_ptr<Segment>& known = all.segments[key];
  std::shared_ptr<Segment> segment = known.lock();
  if (segment == nullptr) known = segment = std::make_shared<Segment>(file.get(), nranks);
  return segment;
}

JoinRequest make_join_request(const RendezvousKey& key, int nranks, int rank) {
  const ProcessId process = this_process();
  JoinRequest request{};
  request.nranks = nranks;
  request.rank = rank;
  request.pid = process.pid;
  request.start = process.start;
  request.key = prove_key(key, rank, process);
  return request;
}

Rendezvous::Rendezvous(int nranks, int rank, Watch watch, const Creation& creation)
    : nranks_(nranks),
      rank_(rank),
      watch_(std::move(watch)),
      creation_(creation),
      joined_(nranks, rank) {}

Rendezvous::~Rendezvous() = default;

void Rendezvous::check_joiners() const {
  if (host_) host_->check_joiners();
}

std::shared_ptr<Segment> Rendezvous::run(const RendezvousKey& key) {
  if (nranks_ == 1) {
    auto segment = std::make_shared<Segment>(-1, 1);
    segment->set_process(0, this_process());
    return segment;
  }
  forbid_second_use(key);
  const SocketName name(key);
  for (;;) {
    if (Fd listener = try_bind(name)) {
      host_ = std::make_unique<RendezvousHost>(*this, key, std::move(listener));
      return host_->run();
    }
    if (Fd connection = try_connect(name)) {
      if (auto segment = try_join(key, std::move(connection))) return segment;
    }
    check_given_up();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Null if the host closed the connection before it replied: its rendezvous was over already, or it
// had no room for another connection.
std::shared_ptr<Segment> Rendezvous::try_join(const RendezvousKey& key, Fd connection) {
  const int fd = connection.get();
  if (!peer_is_same_user(fd)) {
    fail(abi::ncclInvalidUsage, "the rendezvous is hosted by another user (pid %d)", peer_pid(fd));
  }
  const ConnectingSide handshake(key);
  bool open = handshake.send_hello(fd);
  const ProcessId host = process_of(peer_pid(fd));
  const JoinRequest request = make_join_request(key, nranks_, rank_);
  int64_t host_rank = -1;
  const auto check_host = [&](bool closed) {
    const bool alive = closed ? is_alive_after_close(host) : is_alive(host);
    if (alive && (!closed || host_rank < 0)) return;
    const std::string who = host_rank < 0 ? format("pid %d", host.pid)
                                          : format("rank %d (pid %d)", int(host_rank), host.pid);
    const Error reason(abi::ncclRemoteError,
                       format("%s %s during the rendezvous that it hosted; %s", who.c_str(),
                              alive ? "gave up" : "died", progress().c_str()));
    refuse_late_ranks(key, reason);
    throw reason;
  };
  auto checked = Clock::now();
  bool proven = false;  // nothing is read from a host that has not proved to know the key
  while (open) {
    Message message;
    Fd file;
    const Received received = receive_message(fd, message, &file);
    if (received == Received::Closed) break;
    if (received == Received::Nothing) {
      if (const auto reason = given_up()) {
        if (proven) send_message(fd, Failure::of(*reason));
        throw *reason;
      }
      pollfd wait{fd, POLLIN, 0};
      poll(&wait, 1, kGuestPollMs);
      // Its sockets outlive it in processes that it has forked.
      if (Clock::now() - checked < kHostCheckInterval) continue;
      checked = Clock::now();
      check_host(false);
    } else if (!proven) {
      const auto* challenge = std::get_if<Challenge>(&message);
      if (challenge == nullptr || !handshake.send_answer(fd, *challenge)) {
        fail(abi::ncclInvalidUsage,
             "the rendezvous is hosted by pid %d, which does not know the unique id", host.pid);
      }
      proven = true;
      open = send_message(fd, request);
    } else if (const auto* failure = std::get_if<Failure>(&message)) {
      refuse_late_ranks(key, failure->error());
      throw failure->error();
    } else if (std::holds_alternative<Accepted>(message)) {
      return map(fd, key, file);
    } else if (const auto* progress = std::get_if<Progress>(&message)) {
      host_rank = progress->host_rank;
      joined_.set(progress->joined);
    }
  }
  check_host(true);
  return nullptr;
}

// Tells the host if it fails: all ranks would wait for this one.
std::shared_ptr<Segment> Rendezvous::map(int connection, const RendezvousKey& key,
                                         const Fd& file) const {
  try {
    return map_segment(file, nranks_, key);
  } catch (...) {
    const Error error = current_error();
    const Error for_others(abi::ncclRemoteError,
                           format("rank %d (pid %d) cannot map the memory of the communicator: %s",
                                  rank_, this_process().pid, error.what()));
    send_message(connection, Failure::of(for_others));
    throw error;
  }
}

std::optional<Error> Rendezvous::given_up() const {
  const std::string name = format("rank %d (pid %d)", rank_, this_process().pid);
  if (const auto reason = creation_.ended()) {
    return Error(reason->code(), name + " " + reason->text() + "; " + progress());
  }
  if (!creation_.late()) return std::nullopt;
  return Error(abi::ncclTimeout,
               format("%s gave up: %zu of %d ranks joined within %g s%s", name.c_str(),
                      joined_.count(), nranks_, creation_.limit(), joined_.missing().c_str()));
}

void Rendezvous::check_given_up() const {
  if (const auto reason = given_up()) throw *reason;
}

void Rendezvous::check_missing() const {
  if (!watch_) return;
  for (int rank = 0; rank < nranks_; ++rank) {
    if (!joined_.has(rank)) watch_(rank);
  }
}

}  // namespace hostnccl
