// Derivation of other communicators from one: keys, agreements and the membership of survivors.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hostnccl/base/keys.h"
#include "hostnccl/communicator/comm_state.h"
#include "hostnccl/rendezvous/messages.h"
#include "hostnccl/rendezvous/rendezvous.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

// Provides the rendezvous keys for shrink and grow, and ends running creations if this communicator
// is revoked or aborted.
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
  std::optional<RendezvousKey> take_grow_id();         // the key of the unused id. Empty: none
  bool growing() const;                                // whether there is an unused id

 private:
  mutable std::mutex mutex_;
  std::vector<Creation*> running_;
  std::optional<RendezvousKey> grow_key_;  // of the unused id
  uint32_t recovery_ = 0;
  std::map<std::vector<int>, uint32_t> shrinks_;  // since the recovery, by excluded ranks
};

// An exchange of records among the ranks of a communicator, outside the order of its
// operations. It has its own flags in the RankStates, and works even after the communicator was
// revoked or its segment has failed, when no collective can run.
class Agreement {
 public:
  explicit Agreement(const CommState& state) : state_(state) {}
  void attach(Segment& segment, int rank);

  // Called after a recovery, before which ranks may have completed different numbers of agreements.
  // All members continue with the same number.
  void restart(uint32_t recovery);

  // Agreements have sequence numbers, like operations.
  uint32_t take_number() { return ++issued_; }
  // The mark of a creation that a rank gave up before it had the records of all ranks.
  static uint64_t mark_of(uint32_t number) { return uint64_t{2} << 32 | number; }
  // Returns the records of all ranks. Waits for the agreements with lower numbers. Throws if a rank
  // gives up the creation.
  std::vector<ExchangeRecord> exchange_records(const ExchangeRecord& own, uint32_t number,
                                               const Creation& creation);
  // Ends an agreement whose number was taken, without exchanging records.
  void give_up(uint32_t number);

 private:
  void check(const WaitCondition& condition, const Creation& creation,
             const std::string& awaited) const;
  void check_peer(int peer, uint32_t number) const;
  std::vector<ExchangeRecord> exchange(const ExchangeRecord& own, uint32_t number,
                                       const Creation& creation);
  void complete(uint32_t number);

  const CommState& state_;
  Segment* segment_ = nullptr;
  int rank_ = -1;
  std::atomic<uint32_t> issued_{0};
  std::mutex mutex_;
  std::set<uint32_t> ended_;  // numbers after those of unfinished agreements
  Flag completed_;
};

// The surviving ranks of a communicator agree on the membership before they create
// another one without the others.
//
// A rank proposes the ranks that have arrived, once all others are gone or its time limit has
// expired. The first proposal is binding for all ranks: a compare-and-swap decides. All ranks
// therefore get the same result, whichever rank dies meanwhile. A rank that is not included gets an
// error when it arrives.
class Recovery {
 public:
  using Limit = std::chrono::duration<double>;

  explicit Recovery(const CommState& state) : state_(state) {}
  void attach(Segment& segment, int rank);

  // Returns the ranks that did not survive, sorted. Waits up to the limit for ranks that are
  // neither gone nor in lost. Throws if the others continue without this rank.
  std::vector<int> agree(const std::vector<int>& lost, Limit limit);

  // The number of the last recovery in which this rank took part.
  uint32_t number() const { return number_; }

 private:
  std::optional<int> awaited(const RankSet& lost) const;
  void propose();
  std::optional<RankSet> decided() const;

  const CommState& state_;
  Segment* segment_ = nullptr;
  int rank_ = -1;
  RankSet members_;  // after the last recovery
  uint32_t number_ = 0;
};

}  // namespace hostnccl
