// The handles of ncclCommRegister on a communicator. Registration has no effect on performance
// here, but an invalid handle and a double deregistration are detected. As in NCCL, the same memory
// has the same handle, which must be deregistered as often as it was registered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace hostnccl {

class Registrations {
 public:
  void* add(const void* memory, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto [place, added] = handles_.try_emplace({memory, bytes}, Registration{last_ + 1, 0});
    if (added) ++last_;
    ++place->second.count;
    return reinterpret_cast<void*>(place->second.handle);
  }

  bool remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    for (auto place = handles_.begin(); place != handles_.end(); ++place) {
      if (place->second.handle != reinterpret_cast<uintptr_t>(handle)) continue;
      if (--place->second.count == 0) handles_.erase(place);
      return true;
    }
    return false;
  }

 private:
  struct Registration {
    uintptr_t handle;
    size_t count;
  };
  std::mutex mutex_;
  std::map<std::pair<const void*, size_t>, Registration> handles_;  // by memory and size
  uintptr_t last_ = 0;
};

}  // namespace hostnccl
