#include "hostnccl/group/simulate.h"

#include <sched.h>

#include <algorithm>

#include "hostnccl/group/pending_operation.h"

namespace hostnccl {
namespace {

// Constants of the model, fitted to the tables of docs/performance.md (2 CPUs; 2 to 64 ranks, 4 B
// to 64 MB). The estimate is within a factor of 2 to 3 of them.
constexpr double kRankUs = 0.35;               // latency per rank, with a CPU for every rank
constexpr double kOversubscribedRankUs = 1.1;  // latency per rank, with more ranks than CPUs
constexpr double kMessageUs = 0.5;             // latency of a send or receive
constexpr double kCachedBytesPerUs = 30'000;   // one rank copying or reducing within the caches
constexpr double kUncachedBytesPerUs = 7'000;  // the same beyond kCachedBytes
constexpr double kCachedBytes = 4 << 20;

int available_cpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// The bytes that the busiest rank reads and writes.
double bytes_moved(const Operation& operation, int nranks) {
  const double block = static_cast<double>(operation.block_bytes());
  if (!is_collective(operation.kind)) return 2 * block;
  const CollectiveTraits& traits = traits_of(operation.kind);
  const double out = traits.block_per_destination ? block * nranks : block;
  if (nranks == 1) return out;
  // Each rank reduces one slice of an all-reduce and copies the other slices.
  if (operation.kind == Kind::AllReduce) return 3 * out;
  const bool from_all = traits.reduces || !traits.only_root_sends;
  return out + (from_all ? block * nranks : block);
}

double estimate(const PendingOperation& pending, int ncpus) {
  const int nranks = pending.comm->nranks();
  const double ranks_per_cpu = std::max(1.0, static_cast<double>(nranks) / ncpus);
  const double bytes = bytes_moved(pending.operation, nranks);
  const double cached = std::min(bytes, kCachedBytes);
  const double data = cached / kCachedBytesPerUs + (bytes - cached) / kUncachedBytesPerUs;
  if (!is_collective(pending.operation.kind)) return kMessageUs + data;
  return nranks * (ranks_per_cpu > 1 ? kOversubscribedRankUs : kRankUs) + ranks_per_cpu * data;
}

}  // namespace

double estimate_microseconds(const std::vector<PendingOperation>& operations) {
  const int ncpus = available_cpus();
  double sum = 0;
  for (const PendingOperation& operation : operations) sum += estimate(operation, ncpus);
  return sum;
}

}  // namespace hostnccl
