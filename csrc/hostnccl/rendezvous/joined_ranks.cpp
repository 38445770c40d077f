#include "hostnccl/rendezvous/joined_ranks.h"

namespace hostnccl {

std::string JoinedRanks::missing() const {
  constexpr int kMaxNamed = 16;
  const RankSet joined = get();
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

std::string JoinedRanks::progress() const {
  return format("%zu of %d ranks have joined%s", count(), nranks_, missing().c_str());
}

}  // namespace hostnccl
