// The ranks that have joined a rendezvous, for texts and for threads that query its progress.
#pragma once

#include <mutex>
#include <string>

#include "hostnccl/rendezvous/messages.h"

namespace hostnccl {

class JoinedRanks {
 public:
  JoinedRanks(int nranks, int rank) : nranks_(nranks) { joined_.set(static_cast<size_t>(rank)); }

  void set(const RankSet& joined) {
    const std::lock_guard lock(mutex_);
    joined_ = joined;
  }
  RankSet get() const {
    const std::lock_guard lock(mutex_);
    return joined_;
  }
  bool has(int rank) const { return get().test(static_cast<size_t>(rank)); }
  size_t count() const { return get().count(); }

  std::string progress() const;  // "2 of 4 ranks have joined; missing: 1, 3"
  std::string missing() const;   // "; missing: 1, 3", empty if none is missing

 private:
  const int nranks_;
  mutable std::mutex mutex_;
  RankSet joined_;
};

}  // namespace hostnccl
