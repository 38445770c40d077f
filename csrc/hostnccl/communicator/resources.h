// Resources that the user creates on a communicator: reduction operators and buffer registrations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hostnccl/communicator/operation.h"

namespace hostnccl {

// The user-defined reduction operators (PreMulSum) of a communicator. Handles are never reused, so
// a destroyed operator and one of another communicator are detected. In strict mode they are
// reused, as in NCCL.
class RedOps {
 public:
  explicit RedOps(bool reuses_handles) : reuses_handles_(reuses_handles) {}

  abi::ncclRedOp_t add(const Multiplier& multiplier, abi::ncclDataType_t dtype);
  void remove(abi::ncclRedOp_t op);
  // Throws if op is not an operator of this communicator, or was created for another datatype.
  Multiplier find(abi::ncclRedOp_t op, abi::ncclDataType_t dtype) const;

 private:
  struct RedOp {
    Multiplier multiplier;
    abi::ncclDataType_t dtype;
  };
  const bool reuses_handles_;
  mutable std::mutex mutex_;
  std::unordered_map<unsigned, RedOp> ops_;
  std::vector<unsigned> destroyed_;  // handles to be reused
};

// The buffer registrations (ncclCommRegister) of a communicator. They do not affect performance
// here, but an invalid handle and a double deregistration are detected. As in NCCL, the same memory
// has the same handle, which must be deregistered as often as it was registered.
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
