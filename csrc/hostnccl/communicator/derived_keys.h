// Rendezvous keys of the communicators derived from one by shrink and grow.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "hostnccl/base/error.h"
#include "hostnccl/base/unique_id.h"

namespace hostnccl {

class DerivedKeys {
 public:
  // Equal on all survivors without communication: it is derived from the parent's secret, the
  // excluded ranks and the number of earlier shrinks that excluded the same ranks. Only the shrinks
  // after the last recovery count; the recovery's number is part of the key.
  RendezvousKey shrink_key(const Secret& parent, const std::vector<int>& excluded);

  void begin_recovery(uint32_t number);

  // The id of ncclCommGetUniqueId. At most one can be unused at a time.
  abi::ncclUniqueId make_grow_id();
  void check_grow_id(const RendezvousKey& key) const;  // throws if it is not that id
  void use_grow_id();
  bool growing() const;  // it has such an id

 private:
  mutable std::mutex mutex_;
  std::optional<RendezvousKey> grow_key_;  // made and not used yet
  uint32_t recovery_ = 0;
  std::map<std::vector<int>, uint32_t> shrinks_;
};

}  // namespace hostnccl
