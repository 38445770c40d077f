// In strict mode: which ranks the first operations of a communicator have connected, as in NCCL
// from 2.24 on. The first collective connects all ranks, and the first message in a direction its
// two. Such a call of a blocking communicator waits until the other ranks have called theirs.
#pragma once

#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "hostnccl/communicator/operation.h"
#include "hostnccl/communicator/thread_waits.h"

namespace hostnccl {

class Communicator;

class Connections {
 public:
  // Tells the other ranks that this one calls the operation. What connects it; empty if its ranks
  // are connected.
  std::vector<Wait> begin(const Communicator& comm, const Operation& operation);

  // Sleeps until the waits are over, one after the other. An error is that of the communicator.
  static void wait(Communicator& comm, const std::vector<Wait>& waits);

 private:
  std::mutex mutex_;
  bool collective_ = false;                  // this rank has called one
  std::set<std::pair<int, bool>> messages_;  // that it has called: peers, and whether it sends
};

}  // namespace hostnccl
