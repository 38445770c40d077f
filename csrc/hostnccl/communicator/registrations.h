// The handles of ncclCommRegister on a communicator. Registration has no effect on performance
// here, but an invalid handle and one that is deregistered twice are detected.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_set>

namespace hostnccl {

class Registrations {
 public:
  void* add() {
    const std::lock_guard lock(mutex_);
    handles_.insert(++last_);
    return reinterpret_cast<void*>(last_);
  }

  bool remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    return handles_.erase(reinterpret_cast<uintptr_t>(handle)) != 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_set<uintptr_t> handles_;
  uintptr_t last_ = 0;
};

}  // namespace hostnccl
