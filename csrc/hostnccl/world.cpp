#include "hostnccl/world.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "hostnccl/peer_memory.h"
#include "hostnccl/tuning.h"

namespace hostnccl {
namespace {

constexpr char kShrunk[] = "ended all operations of its communicator to shrink it";

size_t lanes_at() { return sizeof(Header); }

size_t channels_at(int nranks) { return lanes_at() + sizeof(Lane) * static_cast<size_t>(nranks); }

}  // namespace

size_t World::bytes(int nranks) {
  const size_t n = static_cast<size_t>(nranks);
  return channels_at(nranks) + sizeof(Channel) * n * n;
}

World::World(int fd, int nranks, const MeetingName& name)
    : nranks_(nranks), own_pid_(getpid()), name_(name), bytes_(bytes(nranks)) {
  const int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory_ == MAP_FAILED) fail_errno("mmap of %zu bytes for %d ranks", bytes_, nranks);
  unsigned char* base = static_cast<unsigned char*>(memory_);
  header_ = reinterpret_cast<Header*>(base);
  lanes_ = reinterpret_cast<Lane*>(base + lanes_at());
  channels_ = reinterpret_cast<Channel*>(base + channels_at(nranks));
  std::memcpy(&probe_word_, name_.data(), sizeof probe_word_);
}

World::~World() { munmap(memory_, bytes_); }

void World::set_process(int rank, const ProcessId& process) {
  lane(rank).pid = process.pid;
  lane(rank).start = process.start;
}

void World::enter(int rank, const SignalRange& signals) {
  Lane& own = lane(rank);
  own.signals = signals;
  own.probe = reinterpret_cast<uint64_t>(&probe_word_);
  if (sched_getaffinity(0, sizeof own.cpus, &own.cpus) != 0) CPU_ZERO(&own.cpus);
  own.presence.store(Presence::Alive, std::memory_order_release);
  own.stage.raise(1);
}

void World::probe(int rank) {
  bool all = direct_reads_wanted();
  bool within_process = true;
  for (int peer = 0; peer < nranks_ && all; ++peer) {
    if (same_process(peer)) continue;
    within_process = false;
    uint64_t word = 0;
    all = can_read(process(peer).pid, lane(peer).probe, &word, sizeof word) && word == probe_word_;
  }
  lane(rank).reads_from.store(all ? direct_bytes(within_process) : SIZE_MAX,
                              std::memory_order_relaxed);
  lane(rank).stage.raise(2);
}

void World::settle() {
  size_t most = 0;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (int rank = 0; rank < nranks_; ++rank) {
    CPU_OR(&cpus, &cpus, &lane(rank).cpus);
    most = std::max<size_t>(most, lane(rank).reads_from.load(std::memory_order_relaxed));
    check_signals(rank);
  }
  direct_from_ = most;
  crowded_ = nranks_ > CPU_COUNT(&cpus);
}

void World::check_signals(int rank) const {
  const SignalRange& first = lane(0).signals;
  const SignalRange& other = lane(rank).signals;
  if (first == other) return;
  hostnccl::fail(abi::ncclInvalidUsage,
                 "the ranks disagree about numRmaCtx and numRmaSig: %s says %u and %u, %s says %u "
                 "and %u",
                 name_of(0).c_str(), first.contexts, first.per_context, name_of(rank).c_str(),
                 other.contexts, other.per_context);
}

Error World::failure() const {
  // Whoever writes the text does so at once, unless it is killed in between.
  for (int i = 0; i < 1000 && header_->failing.load(std::memory_order_acquire) != Header::Written;
       ++i) {
    sched_yield();
  }
  if (header_->failing.load(std::memory_order_acquire) != Header::Written) {
    return Error(abi::ncclRemoteError, "a rank ended while it reported a failure");
  }
  return Error(static_cast<abi::ncclResult_t>(header_->code), header_->text);
}

void World::fail(const Error& error) {
  uint32_t none = Header::None;
  if (!header_->failing.compare_exchange_strong(none, Header::Writing)) return;
  header_->code = error.code();
  const size_t length = std::min(error.text().size(), sizeof header_->text - 1);
  std::memcpy(header_->text, error.text().data(), length);
  header_->text[length] = '\0';
  header_->failing.store(Header::Written);
  wake_all();
}

const char* World::how_gone(int rank, bool look_for_life, bool for_operations) const {
  const Presence presence = lane(rank).presence.load(std::memory_order_acquire);
  if (presence == Presence::Left) return "destroyed its communicator";
  if (presence == Presence::Aborted) return "aborted its communicator";
  if (presence == Presence::Revoked && for_operations) return "revoked its communicator";
  if (presence == Presence::Shrunk && for_operations) return kShrunk;
  if (look_for_life && !same_process(rank) && !is_alive(process(rank))) return "died";
  return nullptr;
}

void World::check_owner(int rank, const Wanted& wanted, bool look_for_life) const {
  const char* how = how_gone(rank, look_for_life, true);
  // It may have raised the word as the last thing it did.
  if (how == nullptr || wanted.arrived()) return;
  hostnccl::fail(abi::ncclRemoteError, "%s %s while others were waiting for it",
                 name_of(rank).c_str(), how);
}

void World::check_voter(int rank, const Wanted& wanted, bool look_for_life) const {
  const char* how = how_gone(rank, look_for_life, false);
  if (how == nullptr || wanted.arrived()) return;
  hostnccl::fail(abi::ncclRemoteError, "%s %s and cannot take part in making another",
                 name_of(rank).c_str(), how);
}

void World::check_member(int rank) const {
  const char* how = how_gone(rank, true, false);
  if (how == nullptr) return;
  hostnccl::fail(abi::ncclRemoteError, "%s %s and cannot be in the new communicator",
                 name_of(rank).c_str(), how);
}

void World::leave(int rank, Presence how) {
  lane(rank).presence.store(how, std::memory_order_release);
  wake_all();
}

void World::wake_all() const {
  for (int rank = 0; rank < nranks_; ++rank) lane(rank).stage.wake();
}

std::string World::name_of(int rank) const {
  return format("rank %d (pid %d)", rank, lane(rank).pid);
}

}  // namespace hostnccl
