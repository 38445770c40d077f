#include "hostnccl/rendezvous/rendezvous.h"

#include <poll.h>

#include <map>
#include <thread>

#include "hostnccl/base/params.h"
#include "hostnccl/rendezvous/rendezvous_host.h"

namespace hostnccl {
namespace {

constexpr int kPollMs = 50;
// A joiner waits this much longer than its deadline, so that the host reports the timeout to all.
constexpr auto kHostGrace = std::chrono::seconds(1);

// The segments that this process has mapped, by name.
struct Registry {
  std::mutex mutex;
  std::map<RendezvousName, std::weak_ptr<Segment>> segments;
};

Registry& registry() {
  static Registry& instance = *new Registry;  // outlives every thread
  return instance;
}

void forbid_second_use(const RendezvousName& name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.segments.find(name);
  if (found != all.segments.end() && !found->second.expired()) {
    fail(abi::ncclInvalidUsage, "commId has already made a communicator, which has all its ranks");
  }
}

}  // namespace

std::shared_ptr<Segment> map_segment(int fd, int nranks, const RendezvousName& name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.segments, [](const auto& item) { return item.second.expired(); });
  std::weak_ptr<Segment>& known = all.segments[name];
  std::shared_ptr<Segment> segment = known.lock();
  if (segment == nullptr) known = segment = std::make_shared<Segment>(fd, nranks, name);
  return segment;
}

Rendezvous::Rendezvous(int nranks, int rank, Watch watch)
    : nranks_(nranks),
      rank_(rank),
      watch_(std::move(watch)),
      timeout_(param_number(ParamId::InitTimeout)),
      deadline_(Clock::now() + timeout_) {
  joined_.set(static_cast<size_t>(rank));
}

std::shared_ptr<Segment> Rendezvous::run(const RendezvousName& name) {
  if (nranks_ == 1) {
    auto segment = std::make_shared<Segment>(-1, 1, name);
    segment->set_process(0, this_process());
    return segment;
  }
  forbid_second_use(name);
  for (;;) {
    if (Fd listener = try_bind(name)) return RendezvousHost(*this, name, std::move(listener)).run();
    if (Fd connection = try_connect(name)) {
      if (auto segment = try_join(name, std::move(connection))) return segment;
    }
    check_deadline();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Null if the host closed the connection before it replied: its rendezvous was over already.
std::shared_ptr<Segment> Rendezvous::try_join(const RendezvousName& name, Fd connection) {
  const int fd = connection.get();
  ProcessId host = peer_process(fd);
  if (!peer_is_same_user(fd)) {
    fail(abi::ncclInvalidUsage, "the rendezvous is hosted by another user (pid %d)", host.pid);
  }
  int host_rank = -1;
  if (send_join_request(fd, make_join_request(name, nranks_, rank_))) {
    for (;;) {
      Reply reply;
      Fd passed;
      const Received received = receive_reply(fd, reply, passed);
      if (received == Received::Closed) break;
      if (received == Received::Nothing) {
        check_deadline(kHostGrace);
        pollfd wait{fd, POLLIN, 0};
        poll(&wait, 1, kPollMs);
        continue;
      }
      if (reply.kind == ReplyKind::Refused) throw Error(reply.code, reply.text);
      if (reply.kind == ReplyKind::Accepted) return map_segment(passed.get(), nranks_, name);
      host_rank = reply.host_rank;
      set_joined(reply.joined);
    }
  }
  if (host_rank >= 0) {
    fail(abi::ncclRemoteError, "rank %d (pid %d) %s during the rendezvous that it hosted; %s",
         host_rank, host.pid, is_alive_after_close(host) ? "gave up" : "died", progress().c_str());
  }
  if (!is_alive_after_close(host)) {
    fail(abi::ncclRemoteError, "pid %d died during the rendezvous that it hosted; %s", host.pid,
         progress().c_str());
  }
  return nullptr;
}

void Rendezvous::check_deadline(std::chrono::seconds grace) const {
  if (cancelled_.load(std::memory_order_relaxed)) {
    fail(abi::ncclInvalidUsage, "rank %d aborted the initialisation of its communicator; %s", rank_,
         progress().c_str());
  }
  if (Clock::now() < deadline_ + grace) return;
  const RankSet joined = this->joined();
  fail(abi::ncclTimeout, "%zu of %d ranks joined within %lld s%s", joined.count(), nranks_,
       static_cast<long long>(timeout_.count()), missing_text(joined).c_str());
}

void Rendezvous::check_missing() const {
  if (!watch_) return;
  const RankSet joined = this->joined();
  for (int rank = 0; rank < nranks_; ++rank) {
    if (!joined.test(static_cast<size_t>(rank))) watch_(rank);
  }
}

void Rendezvous::set_joined(const RankSet& joined) {
  const std::lock_guard lock(mutex_);
  joined_ = joined;
}

RankSet Rendezvous::joined() const {
  const std::lock_guard lock(mutex_);
  return joined_;
}

std::string Rendezvous::missing_text(const RankSet& joined) const {
  constexpr int kMaxNamed = 16;
  std::string missing;
  int named = 0;
  for (int rank = 0; rank < nranks_; ++rank) {
    if (joined.test(static_cast<size_t>(rank))) continue;
    if (named == kMaxNamed) missing += ", ...";
    if (named++ >= kMaxNamed) break;
    missing += format("%s%d", missing.empty() ? "; missing: " : ", ", rank);
  }
  return missing;
}

std::string Rendezvous::progress() const {
  const RankSet joined = this->joined();
  return format("%zu of %d ranks have joined%s", joined.count(), nranks_,
                missing_text(joined).c_str());
}

}  // namespace hostnccl
