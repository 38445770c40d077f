// Derivations: the creation of other communicators from this one. It provides the rendezvous keys
// for shrink and grow, and ends running creations if this communicator is revoked or aborted.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "hostnccl/base/unique_id.h"
#include "hostnccl/rendezvous/creation.h"

namespace hostnccl {

class Derivations {
 public:
  // A running creation, for its lifetime. Not used in the operations before the rendezvous, which
  // wait for the ranks of this communicator and end with its own.
  class Scope {
   public:
    Scope(Derivations& all, Creation& creation);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    Derivations& all_;
    Creation& creation_;
  };

  bool end(Creation::End how);  // ends all running creations. False if there is none

  // The key of a shrink: equal on all survivors without communication. It is derived from the
  // parent's secret, the excluded ranks, the number of earlier shrinks that excluded the same
  // ranks, and the number of the last recovery. Only shrinks after that recovery count.
  RendezvousKey shrink_key(const Secret& parent, const std::vector<int>& excluded);
  void begin_recovery(uint32_t number);

  // The id of ncclCommGetUniqueId. At most one can be unused at a time.
  abi::ncclUniqueId make_grow_id();
  void check_grow_id(const RendezvousKey& key) const;  // throws if key is not that of the id
  void use_grow_id();
  bool growing() const;  // whether there is an unused id

 private:
  mutable std::mutex mutex_;
  std::vector<Creation*> running_;
  std::optional<RendezvousKey> grow_key_;  // of the unused id
  uint32_t recovery_ = 0;
  std::map<std::vector<int>, uint32_t> shrinks_;  // since the recovery, by excluded ranks
};

}  // namespace hostnccl
