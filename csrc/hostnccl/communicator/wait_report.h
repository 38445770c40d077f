// WaitReport: what the sleeping operations of a communicator wait for, for the errors of a
// revocation.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "hostnccl/base/flag.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class WaitReport {
 public:
  struct Wait {
    Operation operation;
    WaitCondition condition;
    int peer;  // that signals the flag
  };

  void publish(const Wait& wait) {
    const std::lock_guard lock(mutex_);
    waits_.push_back(wait);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    waits_.clear();
  }
  std::vector<Wait> waits() const {
    const std::lock_guard lock(mutex_);
    return waits_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Wait> waits_;
};

}  // namespace hostnccl
