#include "hostnccl/rendezvous/rendezvous.h"

#include <poll.h>

#include <map>
#include <thread>

#include "hostnccl/base/params.h"
#include "hostnccl/rendezvous/rendezvous_host.h"

namespace hostnccl {
namespace {

constexpr int kPollMs = 50;
constexpr auto kForTheHost = std::chrono::seconds(1);  // it is to tell all that time is up

// The segments that this process has mapped, by their names.
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
    fail(abi::ncclInvalidUsage, "commId has already made a communicator whose ranks are complete");
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
  arrivals_.set(static_cast<size_t>(rank));
}

std::shared_ptr<Segment> Rendezvous::run(const RendezvousName& name) {
  if (nranks_ == 1) {
    auto segment = std::make_shared<Segment>(-1, 1, name);
    segment->set_process(0, this_process());
    return segment;
  }
  forbid_second_use(name);
  for (;;) {
    if (Fd listener = try_to_host(name))
      return RendezvousHost(*this, name, std::move(listener)).run();
    if (Fd connection = try_to_join(name)) {
      if (auto segment = try_as_client(name, std::move(connection))) return segment;
    }
    check_patience();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Nothing when the host closed before it had greeted: its meeting was over already.
std::shared_ptr<Segment> Rendezvous::try_as_client(const RendezvousName& name, Fd connection) {
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
        check_patience(kForTheHost);
        pollfd wait{fd, POLLIN, 0};
        poll(&wait, 1, kPollMs);
        continue;
      }
      if (reply.answer == Answer::Refused) throw Error(reply.code, reply.text);
      if (reply.answer == Answer::Accepted) return map_segment(passed.get(), nranks_, name);
      host_rank = reply.host_rank;
      note(reply.arrivals);
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

void Rendezvous::check_patience(std::chrono::seconds beyond) const {
  if (cancelled_.load(std::memory_order_relaxed)) {
    fail(abi::ncclInvalidUsage, "rank %d aborted the initialisation of its communicator; %s", rank_,
         progress().c_str());
  }
  if (Clock::now() < deadline_ + beyond) return;
  const std::string now = progress();
  const size_t comma = now.find(" have arrived");
  fail(abi::ncclTimeout, "%s arrived within %lld s%s", now.substr(0, comma).c_str(),
       static_cast<long long>(timeout_.count()), now.substr(comma + 13).c_str());
}

void Rendezvous::check_missing() const {
  if (!watch_) return;
  Arrivals arrivals;
  {
    const std::lock_guard lock(mutex_);
    arrivals = arrivals_;
  }
  for (int rank = 0; rank < nranks_; ++rank) {
    if (!arrivals.test(static_cast<size_t>(rank))) watch_(rank);
  }
}

void Rendezvous::note(const Arrivals& arrivals) {
  const std::lock_guard lock(mutex_);
  arrivals_ = arrivals;
}

std::string Rendezvous::progress() const {
  Arrivals arrivals;
  {
    const std::lock_guard lock(mutex_);
    arrivals = arrivals_;
  }
  constexpr int kMostNamed = 16;
  std::string missing;
  int named = 0;
  for (int rank = 0; rank < nranks_; ++rank) {
    if (arrivals.test(static_cast<size_t>(rank))) continue;
    if (named == kMostNamed) missing += ", ...";
    if (named++ >= kMostNamed) break;
    missing += format("%s%d", missing.empty() ? "; missing: " : ", ", rank);
  }
  return format("%zu of %d ranks have arrived%s", arrivals.count(), nranks_, missing.c_str());
}

}  // namespace hostnccl
