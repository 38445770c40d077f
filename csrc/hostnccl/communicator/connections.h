// The first operations of a communicator that this rank has called. In NCCL from 2.24 on these
// connect ranks: the first collective all of them, the first message in a direction its two.
#pragma once

#include <mutex>
#include <set>
#include <utility>

namespace hostnccl {

class Connections {
 public:
  // Whether the call is the first collective, or the first message to or from the peer.
  bool is_first_collective() {
    const std::lock_guard lock(mutex_);
    return !std::exchange(collective_, true);
  }
  bool is_first_message(int peer, bool sends) {
    const std::lock_guard lock(mutex_);
    return messages_.emplace(peer, sends).second;
  }

 private:
  std::mutex mutex_;
  bool collective_ = false;
  std::set<std::pair<int, bool>> messages_;
};

}  // namespace hostnccl
