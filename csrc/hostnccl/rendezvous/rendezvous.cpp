#include "hostnccl/rendezvous/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <map>
#include <system_error>
#include <thread>
#include <vector>

#include "common/per_process.h"
#include "hostnccl/base/interrupt.h"
#include "hostnccl/base/params.h"
#include "hostnccl/base/thread.h"
#include "hostnccl/rendezvous/messages.h"

namespace hostnccl {
namespace {

thread_local std::optional<Creation::Seconds> limit_of_thread;

const char* text_of(Creation::End how) {
  switch (how) {
    case Creation::End::Aborted:
      return "aborted the communicator while it was being created";
    case Creation::End::ParentAborted:
      return "aborted its communicator while another was derived from it";
    case Creation::End::ParentRevoked:
      return "revoked its communicator while another was derived from it";
    default:
      return kInterruption;
  }
}

}  // namespace

void Creation::set_limit(std::optional<Seconds> limit) { limit_of_thread = limit; }

Creation::Creation()
    : limit_(limit_of_thread ? *limit_of_thread
                             : std::chrono::seconds(param_number(ParamId::InitTimeout))) {}

std::optional<Error> Creation::given_up() const {
  if (auto reason = ended()) return reason;
  if (!late()) return std::nullopt;
  return Error(abi::ncclTimeout, format("gave up after %g s", limit()));
}

std::optional<Error> Creation::ended() const {
  End how = end_.load(std::memory_order_relaxed);
  if (how == End::None && interrupted()) how = End::Interrupted;
  if (how == End::None) return std::nullopt;
  return Error(abi::ncclRemoteError, text_of(how));
}

namespace {

constexpr int kPollMs = 50;
constexpr auto kProcessCheckInterval = std::chrono::milliseconds(200);
constexpr auto kProgressInterval = std::chrono::milliseconds(20);  // one message for several ranks
constexpr auto kGracePeriod = std::chrono::milliseconds(700);      // for requests after an error

// For the refusal of late ranks.
constexpr auto kRefusalTime = std::chrono::seconds(10);
constexpr auto kReportTime = std::chrono::seconds(1);
constexpr auto kPause = std::chrono::milliseconds(50);
constexpr int kRefusalPollMs = 500;

// Sends the reason to the listening rank. False if it did not receive it before the end.
bool report(int connection, const RendezvousKey& key, const Failure& reason,
            Clock::time_point end) {
  const ConnectingSide handshake(key);
  bool open = peer_is_same_user(connection) && handshake.send_hello(connection);
  while (open && Clock::now() < end) {
    pollfd wait{connection, POLLIN, 0};
    poll(&wait, 1, int(kPause.count()));
    Message message;
    const Received received = receive_message(connection, message);
    open = received != Received::Closed;
    if (received != Received::Message) continue;
    const auto* challenge = std::get_if<Challenge>(&message);
    return challenge && handshake.send_answer(connection, *challenge) &&
           send_message(connection, reason);
  }
  return false;
}

class Refusal {
 public:
  Refusal(const RendezvousKey& key, const Error& reason, std::optional<JoinListener> listener)
      : key_(key), name_(key), reason_(Failure::of(reason)), listener_(std::move(listener)) {}

  void run() {
    while (!over()) {
      if (!listener_) {
        if (Socket free = try_bind(name_)) listener_.emplace(std::move(free), key_);
      }
      if (listener_) {
        answer();
      } else if (const Socket connection = try_connect(name_)) {
        if (report(connection.get(), key_, reason_, end_)) await_close(connection.get());
      }
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  bool over() const { return Clock::now() >= end_; }

  // Sends the reason to all ranks that connect, until the end.
  void answer() {
    std::vector<Socket> refused;  // open until the end: an early close would discard the reason
    while (!over() && refused.size() < kMaxRanks) {
      std::vector<pollfd> waits;
      listener_->add_to(waits);
      poll(waits.data(), waits.size(), kRefusalPollMs);
      try {
        for (Socket& joiner : listener_->advance()) {
          send_message(joiner.get(), reason_);
          refused.push_back(std::move(joiner));
        }
      } catch (const Error&) {  // no free descriptor yet
        std::this_thread::sleep_for(kPause);
      }
    }
  }

  // Waits until the listening rank stops listening.
  void await_close(int connection) const {
    Message message;
    while (!over() && receive_message(connection, message) != Received::Closed) {
      pollfd wait{connection, POLLIN, 0};
      poll(&wait, 1, kRefusalPollMs);
    }
  }

  const RendezvousKey key_;
  const SocketName name_;
  const Failure reason_;
  std::optional<JoinListener> listener_;
  const Clock::time_point end_ = Clock::now() + kRefusalTime;
};

// The segments that this process has mapped, by the keys of their rendezvous.
struct Rendezvouses {
  std::mutex mutex;
  std::map<RendezvousKey, std::weak_ptr<Segment>> segments;
};

void forbid_second_use(const RendezvousKey& key) {
  auto& all = common::per_process<Rendezvouses>();
  const std::lock_guard lock(all.mutex);
  const auto found = all.segments.find(key);
  if (found != all.segments.end() && !found->second.expired()) {
    fail(abi::ncclInvalidUsage,
         "commId has already created a communicator, and all of its ranks have joined");
  }
}

// Sends a message. Waits some seconds if the receiver's queue is full or too many descriptors are
// in transit. False, with errno set, if it cannot be sent.
template <typename T>
bool deliver(int connection, const T& message, int passed_fd = -1) {
  const auto end = Clock::now() + std::chrono::seconds(5);
  while (!send_message(connection, message, passed_fd)) {
    if ((errno != EAGAIN && errno != ETOOMANYREFS) || Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::string name_of(int64_t rank, int64_t pid) {
  return format("rank %d (pid %d)", int(rank), int(pid));
}

std::string name_of(const JoinRequest& request) { return name_of(request.rank, request.pid); }

// The segment of a rendezvous in this process. Maps the file if it is not mapped yet.
std::shared_ptr<Segment> map_segment(const Fd& file, int nranks, const RendezvousKey& key) {
  auto& all = common::per_process<Rendezvouses>();
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

}  // namespace

void refuse_late_ranks(const RendezvousKey& key, const Error& reason,
                       std::optional<JoinListener> listener) {
  try {
    start_thread([refusal = Refusal(key, reason, std::move(listener))]() mutable {
      guarded([&] { refusal.run(); });
    });
  } catch (const std::exception&) {
    // Without the thread, late ranks wait until their own deadlines.
  }
}

// The thread does not report the reason at once, and this process may end.
void refuse_ranks(const RendezvousKey& key, const Error& reason) {
  try {
    if (const Socket connection = try_connect(SocketName(key))) {
      report(connection.get(), key, Failure::of(reason), Clock::now() + kReportTime);
    }
  } catch (const Error&) {
    // No free descriptor: these ranks get the reason from the thread, if it has one later.
  }
  refuse_late_ranks(key, reason);
}

// The host of a rendezvous. It collects the join requests, checks that they agree, and sends each
// joiner the segment or the reason for a refusal.
class RendezvousHost {
 public:
  RendezvousHost(Rendezvous& rendezvous, const RendezvousKey& key, Socket listener);
  std::shared_ptr<Segment> run();
  // After run(): throws if a joiner could not map the segment.
  void check_joiners() const;

 private:
  struct Joiner {
    Socket connection;
    JoinRequest request{};
    bool has_request = false;
  };

  void collect_requests();
  void poll_once();  // accepts connections and reads messages
  void accept();
  void read_messages(Joiner& joiner);
  void note_request(Joiner& joiner, const JoinRequest& request);
  void note_closed(Joiner& joiner);
  void note_failure(const Failure& failure) const;
  [[noreturn]] void fail_joiner(const Joiner& joiner, const char* how) const;
  void check(const JoinRequest& request) const;
  void check_key(const JoinRequest& request) const;
  void check_processes() const;
  void send_progress() const;
  std::shared_ptr<Segment> send_segment();
  [[noreturn]] void refuse(const Error& reason);

  Rendezvous& rendezvous_;
  const RendezvousKey key_;
  const JoinRequest self_;
  std::optional<JoinListener> listener_;  // until the segment is sent
  Fd file_;                               // of the segment
  std::vector<Joiner> joiners_;
  RankSet joined_;
  bool refusing_ = false;
  int requests_ = 1;    // including this rank's own
  int largest_nranks_;  // of all requests
};

void JoinedRanks::set(const RankSet& joined) {
  const std::lock_guard lock(mutex_);
  joined_ = joined;
}

std::vector<int> JoinedRanks::missing() const {
  const std::lock_guard lock(mutex_);
  std::vector<int> missing;
  for (int rank = 0; rank < nranks_; ++rank) {
    if (!joined_.test(static_cast<size_t>(rank))) missing.push_back(rank);
  }
  return missing;
}

std::string JoinedRanks::count_text() const {
  return format("%zu of %d ranks", static_cast<size_t>(nranks_) - missing().size(), nranks_);
}

std::string JoinedRanks::missing_text() const {
  constexpr size_t kMaxNamed = 16;
  const std::vector<int> ranks = missing();
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMaxNamed); ++i) {
    text += format("%s%d", i == 0 ? "; missing: " : ", ", ranks[i]);
  }
  return ranks.size() > kMaxNamed ? text + ", ..." : text;
}

std::string JoinedRanks::progress_text() const {
  return count_text() + " have joined" + missing_text();
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
    if (Socket listener = try_bind(name)) {
      host_ = std::make_unique<RendezvousHost>(*this, key, std::move(listener));
      return host_->run();
    }
    if (Socket connection = try_connect(name)) {
      if (auto segment = try_join(key, std::move(connection))) return segment;
    }
    check_given_up();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Null if the host closed the connection before it replied, because its rendezvous was already over
// or it had too many connections.
std::shared_ptr<Segment> Rendezvous::try_join(const RendezvousKey& key, Socket connection) {
  const int fd = connection.get();
  if (!peer_is_same_user(fd)) {
    fail(abi::ncclInvalidUsage, "the rendezvous is hosted by another user (pid %d)", peer_pid(fd));
  }
  const ConnectingSide handshake(key);
  bool open = handshake.send_hello(fd);
  const ProcessId host = process_of(peer_pid(fd));
  const JoinRequest request = make_join_request(key, nranks_, rank_);
  int64_t host_rank = -1;
  auto checked = Clock::now();
  bool proven = false;  // whether the host has proved that it knows the key
  bool died = false;    // the host, whose last messages are still read
  while (open) {
    Message message;
    Fd file;
    const Received received = receive_message(fd, message, &file);
    if (received == Received::Closed) break;
    if (received == Received::Nothing) {
      if (died) break;
      if (const auto reason = given_up()) {
        if (proven) send_message(fd, Failure::of(*reason));
        throw *reason;
      }
      pollfd wait{fd, POLLIN, 0};
      poll(&wait, 1, kPollMs);
      // The host's sockets outlive it in children that the system call clone has created.
      if (Clock::now() - checked < kProcessCheckInterval) continue;
      checked = Clock::now();
      died = !is_alive(host);
      if (proven && !died) report_missing(fd);
    } else if (!proven) {
      const auto* challenge = std::get_if<Challenge>(&message);
      if (challenge == nullptr || !handshake.send_answer(fd, *challenge)) {
        fail(abi::ncclInvalidUsage,
             "the rendezvous is hosted by pid %d, which does not know the unique id", host.pid);
      }
      proven = true;
      // A host that has failed may have sent its reason before it closed the connection.
      open = send_message(fd, request) || errno == EPIPE || errno == ECONNRESET;
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
  const bool alive = is_alive_after_close(host);
  if (alive && host_rank < 0) return nullptr;
  const std::string who = host_rank < 0 ? format("pid %d", host.pid) : name_of(host_rank, host.pid);
  const Error reason(abi::ncclRemoteError,
                     format("%s %s during the rendezvous that it hosted; %s", who.c_str(),
                            alive ? "gave up" : "died", progress().c_str()));
  refuse_late_ranks(key, reason);
  throw reason;
}

// Reports an error to the host, because all ranks would wait for this one.
std::shared_ptr<Segment> Rendezvous::map(int connection, const RendezvousKey& key,
                                         const Fd& file) const {
  try {
    return map_segment(file, nranks_, key);
  } catch (...) {
    const Error error = current_error();
    const Error for_others(
        abi::ncclRemoteError,
        name_of(rank_, getpid()) + " cannot map the memory of the communicator: " + error.what());
    send_message(connection, Failure::of(for_others));
    throw error;
  }
}

std::optional<Error> Rendezvous::given_up() const {
  const std::string name = name_of(rank_, getpid());
  if (const auto reason = creation_.ended()) {
    return Error(reason->code(), name + " " + reason->text() + "; " + progress());
  }
  if (!creation_.late()) return std::nullopt;
  return Error(abi::ncclTimeout, format("%s gave up: %s joined within %g s%s", name.c_str(),
                                        joined_.count_text().c_str(), creation_.limit(),
                                        joined_.missing_text().c_str()));
}

void Rendezvous::check_given_up() const {
  if (const auto reason = given_up()) throw *reason;
}

void Rendezvous::check_missing() const {
  if (!watch_) return;
  for (const int rank : joined_.missing()) watch_(rank);
}

// The host may be a rank that joins from outside and does not know the missing ones.
void Rendezvous::report_missing(int connection) const {
  try {
    check_missing();
  } catch (const Error& error) {
    send_message(connection, Failure::of(error));
    throw;
  }
}

RendezvousHost::RendezvousHost(Rendezvous& rendezvous, const RendezvousKey& key, Socket listener)
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
  int reported = 0;  // requests_ at the last progress message
  while (requests_ < rendezvous_.nranks_) {
    rendezvous_.check_given_up();
    poll_once();
    const auto now = Clock::now();
    if (requests_ != reported && now - checked >= kProgressInterval) {
      send_progress();
      reported = requests_;
    }
    if (requests_ == rendezvous_.nranks_ || now - checked < kProcessCheckInterval) continue;
    try {
      check_processes();
      rendezvous_.check_missing();
    } catch (const Error&) {
      poll_once();  // throws the reason that the process sent before it exited, if it did
      throw;
    }
    checked = now;
  }
}

void RendezvousHost::poll_once() {
  std::vector<pollfd> waits;
  waits.reserve(joiners_.size() + 1);
  for (const Joiner& joiner : joiners_) waits.push_back({joiner.connection.get(), POLLIN, 0});
  listener_->add_to(waits);
  poll(waits.data(), waits.size(), kPollMs);
  const size_t connected = joiners_.size();
  for (size_t i = 0; i < connected; ++i) {
    if (waits[i].revents != 0) read_messages(joiners_[i]);
  }
  accept();
  std::erase_if(joiners_, [](const Joiner& joiner) { return !joiner.connection; });
}

void RendezvousHost::accept() {
  for (Socket& connection : listener_->advance()) {
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
  joiner.connection = {};
  if (!joiner.has_request || refusing_) return;
  fail_joiner(joiner, is_alive_after_close(joiner.request.process()) ? "gave up" : "died");
}

// A joiner gives up, or an earlier rendezvous of this id, without this rank, has failed.
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
    first = &earlier->request;  // it exists: joiners are in the order of their connections
  }
  fail(abi::ncclInvalidUsage, "rank %d is used twice: by pid %d and by pid %d", request.rank,
       int(first->pid), int(request.pid));
}

// A connection outlives its process in children that the system call clone has created.
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
    // The first barrier detects a joiner that has gone.
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

// A joiner closes its connection after it has mapped the segment.
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
  const auto end = Clock::now() + kGracePeriod;
  const auto expects_more = [&] {
    return given_up ? listener_->has_pending() : requests_ < largest_nranks_;
  };
  const Failure failure = Failure::of(reason);
  try {
    accept();
    while (expects_more() && Clock::now() < end) poll_once();
  } catch (const Error&) {
    // No free descriptor: only the ranks that have joined get the reason.
  }
  for (const Joiner& joiner : joiners_) {
    if (joiner.connection) deliver(joiner.connection.get(), failure);
  }
  if (!given_up) refuse_late_ranks(key_, reason, std::move(listener_));
  throw reason;
}

}  // namespace hostnccl
