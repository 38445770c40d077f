#include "hostnccl/group/simulate.h"

#include <sched.h>

#include <algorithm>

#include "hostnccl/group/group.h"

namespace hostnccl {
namespace {

// Fitted to the tables of docs/performance.md (2 CPUs; 2 to 64 ranks, 4 B to 64 MB), which the
// estimate meets within a factor of 2 to 3.
constexpr double kRankUs = 0.35;         // for each rank to be seen, while all of them run
constexpr double kTurnUs = 1.1;          // for each rank, when they take turns on the CPUs
constexpr double kMessageUs = 0.5;       // for a message
constexpr double kCachedPerUs = 30'000;  // bytes that one rank copies or reduces in caches
constexpr double kMemoryPerUs = 7'000;   // the same, out of them
constexpr double kCachedBytes = 4 << 20;

int cpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// The bytes that pass through the busiest rank: what it hands out, and what it takes in.
double bytes_moved(const Operation& operation, int nranks) {
  const double block = static_cast<double>(operation.block_bytes());
  if (!is_collective(operation.kind)) return operation.kind == Kind::Recv ? 2 * block : block;
  const CollectiveTraits& traits = traits_of(operation.kind);
  const double out = traits.block_per_destination ? block * nranks : block;
  if (nranks == 1) return out;
  // An all-reduce is sliced: each rank reduces one slice, and takes all others reduced.
  if (operation.kind == Kind::AllReduce) return 3 * out;
  const bool from_all = traits.reduces || !traits.only_root_sends;
  return out + (from_all ? block * nranks : block);
}

double estimate(const Item& item, int ncpus) {
  const int nranks = item.comm->nranks();
  const double turns = std::max(1.0, static_cast<double>(nranks) / ncpus);
  const double bytes = bytes_moved(item.operation, nranks);
  const double cached = std::min(bytes, kCachedBytes);
  const double data = cached / kCachedPerUs + (bytes - cached) / kMemoryPerUs;
  if (!is_collective(item.operation.kind)) return kMessageUs + data;
  return nranks * (turns > 1 ? kTurnUs : kRankUs) + turns * data;
}

}  // namespace

double estimate(const std::vector<Item>& items) {
  const int ncpus = cpus();
  double sum = 0;
  for (const Item& item : items) sum += estimate(item, ncpus);
  return sum;
}

}  // namespace hostnccl
