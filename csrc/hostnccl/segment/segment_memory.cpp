// Memory usage of a segment, and freeing parts of it. A page of a memfd has no memory until it is
// touched; MADV_REMOVE frees it again, for every process that maps it.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>

#include "hostnccl/segment/segment.h"

namespace hostnccl {
namespace {

// The whole pages within a range. The layouts are aligned to 4 KiB, and pages may be larger.
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

size_t resident(const void* from, size_t size) {
  const Pages pages(from, size);
  if (pages.bytes == 0) return 0;
  const auto states = std::make_unique<unsigned char[]>(pages.bytes / Pages::page());
  if (mincore(pages.address(), pages.bytes, states.get()) != 0) fail_errno("mincore");
  size_t present = 0;
  for (size_t i = 0; i < pages.bytes / Pages::page(); ++i) present += states[i] & 1;
  return present * Pages::page();
}

void remove(void* from, size_t size) {
  const Pages pages(from, size);
  if (pages.bytes != 0 && madvise(pages.address(), pages.bytes, MADV_REMOVE) != 0) {
    fail_errno("freeing %zu bytes of shared memory", pages.bytes);
  }
}

}  // namespace

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

}  // namespace hostnccl
