#include "hostnccl/segment/segment.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstring>
#include <memory>

#include "hostnccl/segment/memory.h"

namespace hostnccl {
namespace {

constexpr char kShrunkText[] = "ended all operations of its communicator to shrink it";

size_t rank_states_at() { return sizeof(Header); }

size_t pair_rings_at(int nranks) {
  return rank_states_at() + sizeof(RankState) * static_cast<size_t>(nranks);
}

// The pages that lie completely within a range. The layouts are aligned to 4 KiB, but pages may be
// larger.
struct Pages {
  uintptr_t begin;
  size_t bytes = 0;

  Pages(const void* from, size_t size)
      : begin((reinterpret_cast<uintptr_t>(from) + page() - 1) / page() * page()) {
    const uintptr_t end = (reinterpret_cast<uintptr_t>(from) + size) / page() * page();
    if (end > begin) bytes = end - begin;
  }
  void* address() const { return reinterpret_cast<void*>(begin); }
  static size_t page() {
    static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return size;
  }
};

bool is_affinity(const cpu_set_t& cpus) {
  cpu_set_t now;
  return sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &cpus);
}

// Moves this thread to one of these CPUs. It may run on the allowed ones afterwards, as before.
bool move_to(const cpu_set_t& cpus, const cpu_set_t& allowed) {
  if (sched_setaffinity(0, sizeof cpus, &cpus) != 0) return false;
  thread_local cpu_set_t restriction{};  // by somebody else than the cgroup, as last found
  if (!CPU_EQUAL(&restriction, &allowed)) {
    // The kernel reduces the set of all CPUs to those of the cgroup, and extends it when the cgroup
    // gets more CPUs later. That is how a thread starts.
    cpu_set_t all;
    std::memset(&all, 0xff, sizeof all);
    if (sched_setaffinity(0, sizeof all, &all) == 0 && is_affinity(allowed)) return true;
    restriction = allowed;
  }
  sched_setaffinity(0, sizeof allowed, &allowed);
  return true;
}

// The bytes of the range's pages that have memory: a page of a memory file has none until it is
// touched.
size_t resident(const void* from, size_t size) {
  const Pages pages(from, size);
  if (pages.bytes == 0) return 0;
  const auto states = std::make_unique<unsigned char[]>(pages.bytes / Pages::page());
  if (mincore(pages.address(), pages.bytes, states.get()) != 0) fail_errno("mincore");
  size_t present = 0;
  for (size_t i = 0; i < pages.bytes / Pages::page(); ++i) present += states[i] & 1;
  return present * Pages::page();
}

// Frees the memory of the range's pages, for every process that maps them.
void remove(void* from, size_t size) {
  const Pages pages(from, size);
  if (pages.bytes != 0 && madvise(pages.address(), pages.bytes, MADV_REMOVE) != 0) {
    fail_errno("freeing %zu bytes of shared memory", pages.bytes);
  }
}

}  // namespace

size_t Segment::bytes(int nranks) {
  const size_t n = static_cast<size_t>(nranks);
  return pair_rings_at(nranks) + sizeof(PairRing) * n * n;
}

Fd Segment::make_file(int nranks) {
  Fd file = make_memory_file("hostnccl", bytes(nranks));
  const Secret secret = random_bytes<sizeof(Secret)>();
  if (pwrite(file.get(), secret.data(), secret.size(), offsetof(Header, secret)) !=
      ssize_t(secret.size())) {
    fail_errno("writing to shared memory");
  }
  return file;
}

Segment::Segment(int fd, int nranks) : nranks_(nranks), own_pid_(getpid()), bytes_(bytes(nranks)) {
  if (fd < 0 && nranks > 1) {
    hostnccl::fail(abi::ncclSystemError,
                   "this process has no free file descriptor for the memory of the communicator");
  }
  const int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory_ == MAP_FAILED) fail_errno("mmap of %zu bytes for %d ranks", bytes_, nranks);
  unsigned char* base = static_cast<unsigned char*>(memory_);
  header_ = reinterpret_cast<Header*>(base);
  const size_t n = static_cast<size_t>(nranks);
  rank_states_ = {reinterpret_cast<RankState*>(base + rank_states_at()), n};
  pair_rings_ = {reinterpret_cast<PairRing*>(base + pair_rings_at(nranks)), n * n};
  if (fd < 0) fill_random(header_->secret);
  std::memcpy(&probe_value_, secret().data(), sizeof probe_value_);
  std::memcpy(&identity_, derive_key(secret(), "identity").data(), sizeof identity_);
  identity_ |= 1;
}

Segment::~Segment() { munmap(memory_, bytes_); }

void Segment::set_process(int rank, const ProcessId& process) {
  rank_state(rank).pid = process.pid;
  rank_state(rank).start = process.start;
}

void Segment::announce_rank(int rank, const CommSettings& settings) {
  RankState& own = rank_state(rank);
  own.signals = settings.signals;
  own.strict = settings.strict;
  own.probe = reinterpret_cast<uint64_t>(&probe_value_);
  if (sched_getaffinity(0, sizeof own.cpus, &own.cpus) != 0) CPU_ZERO(&own.cpus);
  own.presence.store(Presence::Alive, std::memory_order_release);
  if (rank == 0) {
    if (nranks_ > 1 && measurement_wanted()) {
      header_->tuning.state = TuningRecord::Wanted;
    } else {
      set_tuning(known_measurements());
    }
  }
  own.step.signal(1);
}

void Segment::set_tuning(const std::optional<Measurements>& measured) {
  header_->tuning.state = measured ? TuningRecord::Measured : TuningRecord::Defaults;
  if (measured) header_->tuning.measured = *measured;
  header_->tuned.signal(1);
}

std::optional<Measurements> Segment::measurements() const {
  const TuningRecord& record = header_->tuning;
  // Another rank wrote them, whose errors must do no harm here.
  const bool usable = record.state == TuningRecord::Measured && plausible(record.measured);
  return usable ? std::optional(record.measured) : std::nullopt;
}

void Segment::publish_cpu(int rank, int cpu, bool contended) const {
  RankState& own = rank_state(rank);
  if (own.cpu.load(std::memory_order_relaxed) != cpu) own.cpu.store(cpu, std::memory_order_relaxed);
  if (contended)
    own.contended.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

// The scheduler may leave ranks on one CPU for seconds, if a busy process has another one, or
// because it moves threads that use much of a CPU, whereas these mostly sleep. If ranks are
// oversubscribed, it may leave three on one CPU and one on another. Or it has left the CPUs of busy
// processes to these. The published CPUs include those of ranks that do nothing now. While no more
// threads are ready to run than there are CPUs, and two ranks share one, another CPU is idle.
bool Segment::move_to_other_cpu(int rank) const {
  constexpr auto kInterval = std::chrono::milliseconds(1);
  constexpr auto kCalm = std::chrono::seconds(10);
  thread_local Clock::time_point last;
  const Clock::time_point now = Clock::now();
  if (now - last < kInterval) return false;
  last = now;
  for (int other = 0; competing_ranks_ > 0 && other < nranks_; ++other) {
    const Clock::duration contended(rank_state(other).contended.load(std::memory_order_relaxed));
    if (contended.count() != 0 && now.time_since_epoch() - contended < kCalm) return false;
  }
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  std::array<int, CPU_SETSIZE + 1> ranks{};  // by published CPU
  for (int other = 0; other < nranks_; ++other) {
    const int cpu = rank_state(other).cpu.load(std::memory_order_relaxed);
    if (cpu > 0 && cpu <= CPU_SETSIZE) ++ranks[static_cast<size_t>(cpu)];
  }
  std::atomic<int>& own = rank_state(rank).cpu;
  const int own_cpu = own.load(std::memory_order_relaxed);
  const int here = own_cpu > 0 && own_cpu <= CPU_SETSIZE ? ranks[static_cast<size_t>(own_cpu)] : 0;
  int fewest = here;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) fewest = std::min(fewest, ranks[cpu + 1]);
  }
  cpu_set_t targets = allowed;
  if (fewest + 1 < here) {
    for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (ranks[cpu + 1] > fewest) CPU_CLR(cpu, &targets);
    }
  } else if (own_cpu > 0 && runnable_threads().value_or(INT_MAX) <= CPU_COUNT(&allowed)) {
    CPU_CLR(static_cast<size_t>(own_cpu - 1), &targets);
  } else {
    return false;
  }
  own.store(0, std::memory_order_relaxed);  // unknown, so that the other rank does not move as well
  const bool moved = move_to(targets, allowed);
  own.store(sched_getcpu() + 1, std::memory_order_relaxed);
  return moved;
}

bool Segment::within_process() const {
  for (int rank = 0; rank < nranks_; ++rank) {
    if (!same_process(rank)) return false;
  }
  return true;
}

void Segment::probe_peer_memory(int rank) {
  bool readable = direct_reads_allowed();
  for (int peer = 0; peer < nranks_ && readable; ++peer) {
    if (same_process(peer)) continue;
    uint64_t value = 0;
    readable = can_read(process(peer).pid, rank_state(peer).probe, &value, sizeof value) &&
               value == probe_value_;
  }
  const Tuning own = tuning_from(measurements(), within_process());
  for (size_t i = 0; i < kPatterns; ++i) {
    rank_state(rank).direct_thresholds[i] = readable ? own.direct[i] : SIZE_MAX;
  }
  rank_state(rank).step.signal(2);
}

void Segment::finish_setup() {
  for (int rank = 0; rank < nranks_; ++rank) check_settings(rank);
  // Several ranks may be threads of this process.
  std::call_once(tuning_is_set_, [this] {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (int rank = 0; rank < nranks_; ++rank) CPU_OR(&cpus, &cpus, &rank_state(rank).cpus);
    competing_ranks_ = nranks_ > CPU_COUNT(&cpus) ? nranks_ : 0;
    tuning_ = tuning_from(measurements(), false);
    for (size_t i = 0; i < kPatterns; ++i) {
      tuning_.direct[i] = 0;
      for (int rank = 0; rank < nranks_; ++rank) {
        tuning_.direct[i] =
            std::max<size_t>(tuning_.direct[i], rank_state(rank).direct_thresholds[i]);
      }
    }
  });
}

bool Segment::end_setup(Header::Setup how) {
  uint32_t now = Header::Open;
  return header_->setup.compare_exchange_strong(now, how) || now == how;
}

void Segment::check_settings(int rank) const {
  if (rank_state(rank).strict != rank_state(0).strict) {
    hostnccl::fail(abi::ncclInvalidUsage,
                   "the ranks disagree about HOSTNCCL_STRICT: %s sets it to %d, %s to %d",
                   name_of(0).c_str(), rank_state(0).strict, name_of(rank).c_str(),
                   rank_state(rank).strict);
  }
  const SignalRange& first = rank_state(0).signals;
  const SignalRange& other = rank_state(rank).signals;
  if (first == other) return;
  hostnccl::fail(abi::ncclInvalidUsage,
                 "the ranks disagree about numRmaCtx and numRmaSig: %s passes %u and %u, %s passes "
                 "%u and %u",
                 name_of(0).c_str(), first.contexts, first.per_context, name_of(rank).c_str(),
                 other.contexts, other.per_context);
}

Error Segment::failure() const {
  // The writer completes the text within moments, unless it is killed. It may be preempted.
  const auto end = Clock::now() + std::chrono::seconds(1);
  while (header_->failure.load(std::memory_order_acquire) != Header::Written) {
    if (waited_for_failure_ || Clock::now() > end) {
      waited_for_failure_ = true;
      return Error(abi::ncclRemoteError, "a rank died while it reported a failure");
    }
    sched_yield();
  }
  return header_->error.error();
}

void Segment::fail(const Error& error) {
  uint32_t none = Header::None;
  if (!header_->failure.compare_exchange_strong(none, Header::Writing)) return;
  header_->error.set(error);
  header_->failure.store(Header::Written);
  wake_all();
}

const char* Segment::how_unavailable(int rank, bool check_process, bool for_operations) const {
  const Presence presence = rank_state(rank).presence.load(std::memory_order_acquire);
  if (presence == Presence::Left) return "destroyed its communicator";
  if (presence == Presence::Aborted) return "aborted its communicator";
  if (presence == Presence::Revoked && for_operations) return "revoked its communicator";
  if (presence == Presence::Shrunk && for_operations) return kShrunkText;
  if (check_process && !same_process(rank) && !is_alive(process(rank))) return "died";
  return nullptr;
}

void Segment::check_owner(int rank, const WaitCondition& condition, bool check_process) const {
  const bool ended = failed();
  const char* how = ended ? nullptr : how_unavailable(rank, check_process, true);
  // The owner may have signalled the flag before the failure, or before it became unavailable.
  if ((!ended && how == nullptr) || condition.met()) return;
  if (ended) throw failure();
  hostnccl::fail(abi::ncclRemoteError, "%s %s while others were waiting for it",
                 name_of(rank).c_str(), how);
}

const char* Segment::how_unavailable_to(int own_rank, int rank, bool check_process) const {
  const uint32_t recovery = rank_state(rank).recovery_step.load();
  if (!rank_state(own_rank).recovery_step.reached(recovery)) return "recovers its communicator";
  return how_unavailable(rank, check_process, false);
}

void Segment::check_agreement_peer(int rank, int own_rank, const WaitCondition& condition,
                                   bool check_process) const {
  const char* how = how_unavailable_to(own_rank, rank, check_process);
  if (how == nullptr || condition.met()) return;
  hostnccl::fail(abi::ncclRemoteError, "%s %s and cannot take part in creating another one",
                 name_of(rank).c_str(), how);
}

void Segment::check_member(int rank, int own_rank) const {
  const char* how = how_unavailable_to(own_rank, rank, true);
  if (how == nullptr) return;
  hostnccl::fail(abi::ncclRemoteError, "%s %s and cannot be in the new communicator",
                 name_of(rank).c_str(), how);
}

Segment::MemoryUsage Segment::memory_usage(int rank) const {
  const RankState& own = rank_state(rank);
  MemoryUsage usage{resident(own.staging_buffers, sizeof own.staging_buffers),
                    resident(&own, offsetof(RankState, staging_buffers))};
  if (rank == 0) usage.persistent += resident(header_, sizeof *header_);
  for (int peer = 0; peer < nranks_; ++peer) {
    const PairRing& to = pair_ring(rank, peer);
    const size_t cells = resident(to.cells, sizeof to.cells);
    usage.persistent += resident(&to, sizeof to) - cells;
    (to.posted.load() == to.taken.load() ? usage.releasable : usage.persistent) += cells;
  }
  return usage;
}

void Segment::release_memory(int rank) const {
  remove(rank_state(rank).staging_buffers, sizeof rank_state(rank).staging_buffers);
  for (int peer = 0; peer < nranks_; ++peer) {
    PairRing& to = pair_ring(rank, peer);
    if (to.posted.load() != to.taken.load()) continue;  // a message is in transit
    remove(to.cells, sizeof to.cells);
  }
}

void Segment::leave(int rank, Presence how) {
  rank_state(rank).presence.store(how, std::memory_order_release);
  wake_all();
}

void Segment::wake_all() const {
  for (int rank = 0; rank < nranks_; ++rank) rank_state(rank).step.wake();
}

std::string Segment::name_of(int rank) const {
  return format("rank %d (pid %d)", rank, rank_state(rank).pid);
}

}  // namespace hostnccl
