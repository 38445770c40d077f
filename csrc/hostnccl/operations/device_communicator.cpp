#include "hostnccl/operations/device_communicator.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "hostnccl/base/interrupt.h"
#include "hostnccl/operations/window_registration.h"

namespace hostnccl {
namespace {

using pynccl::device::ResourceHeader;

// For a thread that waits in a kernel: the longest sleep, and the interval between checks for an
// interruption and the liveness of the other ranks.
constexpr auto kSleep = std::chrono::milliseconds(10);
constexpr auto kCheckPeriod = std::chrono::milliseconds(100);

// floor(n / divisor) is the high half of n times this, for NCCL's idivFast32.
uint32_t reciprocal(int divisor) {
  return static_cast<uint32_t>((uint64_t{1} << 32) / static_cast<uint64_t>(divisor));
}

// The largest size that a handle of resource memory can address, minus space for the header and
// rounding.
constexpr size_t kMostResources = (size_t{UINT32_MAX} - (1 << 20)) * abi::kResourceUnit;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// The least significant half of a word, which changes with every signal.
const std::atomic<uint32_t>& low_half(const void* word) {
  return *static_cast<const std::atomic<uint32_t>*>(word);
}

bool reached(const void* word, int bits, uint64_t least) {
  if (bits == 32) {
    const uint32_t value = low_half(word).load(std::memory_order_seq_cst);
    return static_cast<int32_t>(value - static_cast<uint32_t>(least)) >= 0;
  }
  const uint64_t value =
      static_cast<const std::atomic<uint64_t>*>(word)->load(std::memory_order_seq_cst);
  return static_cast<int64_t>(value - least) >= 0;
}

void futex(const void* word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

// Whether the other ranks can still change a word. Otherwise fails the communicator, which informs
// other threads and ranks.
bool peers_alive(Communicator& comm) {
  const Segment& segment = comm.segment();
  for (int rank = 0; rank < comm.nranks(); ++rank) {
    if (rank == comm.rank() || segment.is_available(rank)) continue;
    comm.state().fail(Error(abi::ncclRemoteError, segment.name_of(rank) +
                                                      " ended while a kernel of " +
                                                      segment.name_of(comm.rank()) + " waited"));
    return false;
  }
  return true;
}

bool wait(void* context, const void* word, int bits, uint64_t least) {
  const Ref<Window> resources = find_window(context);
  if (!resources) return false;
  const Ref<Communicator> comm = handles<Communicator>().find(resources->owner());
  if (!comm) return false;
  auto& header = *reinterpret_cast<ResourceHeader*>(resources->flat().address(comm->rank()));
  SpinBackoff backoff(comm->segment().competing_ranks());
  while (!reached(word, bits, least) && backoff.wait()) {
  }
  auto checked = Clock::now();
  while (!reached(word, bits, least)) {
    if (comm->state().stopped()) return false;
    // Reads the word before it increments the count: a later signal either changes the word or sees
    // the count.
    const uint32_t seen = low_half(word).load(std::memory_order_seq_cst);
    header.sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!reached(word, bits, least)) {
      const timespec time{0, std::chrono::nanoseconds(kSleep).count()};
      if (low_half(word).load(std::memory_order_seq_cst) == seen)
        futex(word, FUTEX_WAIT, seen, &time);
    }
    header.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (const auto now = Clock::now(); now - checked > kCheckPeriod) {
      checked = now;
      if (!peers_alive(*comm)) return false;
      if (interrupted()) {
        comm->fail_interrupted();
        return false;
      }
    }
  }
  return true;
}

void wake(const void* word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

}  // namespace

DeviceRequirements::DeviceRequirements(const abi::ncclDevCommRequirements_t& given, int nranks)
    : version_(given.version), nranks_(nranks), lsa_barriers_(given.lsaBarrierCount) {
  if (lsa_barriers_ < 0) {
    fail(abi::ncclInvalidArgument, "reqs->lsaBarrierCount=%d is negative", lsa_barriers_);
  }
  size_t left = kMostResources;
  const auto need = [&left](size_t bytes) {
    if (bytes > left) {
      fail(abi::ncclInvalidArgument,
           "reqs asks for more than %zu bytes of resource memory on each rank", kMostResources);
    }
    left -= bytes;
  };
  need(pynccl::device::barrier_bytes(lsa_barriers_, nranks_));
  bool gin = given.ginSignalCount > 0 || given.ginCounterCount > 0 || given.barrierCount > 0 ||
             given.railGinBarrierCount > 0 || given.worldGinBarrierCount > 0 ||
             given.ginForceEnable || given.ginConnectionType != abi::NCCL_GIN_CONNECTION_NONE;
  for (const auto* each = given.resourceRequirementsList; each != nullptr; each = each->next) {
    gin = gin || each->ginSignalCount > 0 || each->ginCounterCount > 0;
    const size_t align = each->bufferAlign;
    if ((align & (align - 1)) != 0 || align > static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
      fail(abi::ncclInvalidArgument, "bufferAlign=%zu is not a power of two up to a page", align);
    }
    need(each->bufferSize);
    need(each->bufferAlign);
    resources_.push_back(*each);
  }
  if (gin) {
    fail(abi::ncclInvalidArgument,
         "reqs asks for GIN, or for barriers that need it: hostnccl does not support GIN");
  }
  bool multimem = given.lsaMultimem;
  for (const auto* each = given.teamRequirementsList; each != nullptr; each = each->next)
    multimem = multimem || each->multimem;
  if (multimem) {
    fail(abi::ncclInvalidArgument, "reqs asks for multimem: hostnccl has no multicast memory");
  }
  if (given.cftCaps != 0 || given.cftBarrierCount != 0) {
    fail(abi::ncclInvalidArgument, "reqs asks for CFT: hostnccl does not support it");
  }
}

size_t DeviceRequirements::place(abi::ncclDevComm& out) const {
  constexpr size_t kUnit = abi::kResourceUnit;
  size_t end = sizeof(ResourceHeader);
  const auto take = [&](size_t bytes, size_t align) {
    end = round_up(end, std::max(kUnit, align));
    const auto handle = static_cast<abi::ncclDevResourceHandle>(end / kUnit);
    end += bytes;
    return handle;
  };
  out.lsaBarrier = {take(pynccl::device::barrier_bytes(lsa_barriers_, nranks_), kUnit),
                    lsa_barriers_};
  for (const abi::ncclDevResourceRequirements_t& each : resources_) {
    const abi::ncclDevResourceHandle handle = take(each.bufferSize, each.bufferAlign);
    if (each.outBufferHandle != nullptr) *each.outBufferHandle = handle;
    if (each.outGinSignalStart != nullptr) *each.outGinSignalStart = 0;
    if (each.outGinCounterStart != nullptr) *each.outGinCounterStart = 0;
  }
  return round_up(end, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

Job device_communicator_job(abi::ncclDevComm* out, const Ref<Communicator>& comm,
                            DeviceRequirements requirements) {
  return registration_job(comm, [out, requirements = std::move(requirements)](const Job& job) {
    Communicator& owner = *job.parent;
    abi::ncclDevComm made{};
    const size_t bytes = requirements.place(made);
    const Ref<Window> resources = register_window(job, nullptr, bytes, WindowUse::Resources);
    owner.windows().serve_kernels();
    SlotView<Window>& view = resources.slot()->view;
    view.services = {pynccl::device::kHostServicesVersion, &view.for_kernels, &wait, &wake};
    made.magic = abi::kDeviceMagic;
    made.version = requirements.version();
    made.rank = made.lsaRank = owner.rank();
    made.nRanks = made.lsaSize = owner.nranks();
    made.nRanks_rcp32 = made.lsaSize_rcp32 = reciprocal(owner.nranks());
    made.resourceWindow = &view.for_kernels;
    made.resourceWindow_inlined = {view.for_kernels.lsaFlatBase, view.for_kernels.stride4G, 0};
    made.ginHandles[0] = &view.services;
    *out = made;
  });
}

}  // namespace hostnccl
