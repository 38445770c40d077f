// Rendezvous (bootstrap) of the ranks that hold the same unique id. The first rank binds the socket
// of that id and is the host, within its own init call. The others connect and send it join
// requests. When all have joined, each rank gets the memory of the segment; on an error each gets
// the reason.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "hostnccl/base/flag.h"
#include "hostnccl/rendezvous/joined_ranks.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

class RendezvousHost;

class Rendezvous {
 public:
  // Liveness check of a rank that has not joined; throws if it no longer can.
  using Watch = std::function<void(int rank)>;

  Rendezvous(int nranks, int rank, Watch watch = {});
  ~Rendezvous();

  // Blocks until all ranks have joined. Throws on an error of any rank, at the deadline
  // (HOSTNCCL_INIT_TIMEOUT), and after cancel().
  std::shared_ptr<Segment> run(const RendezvousKey& key);
  // For the time until all ranks use the segment: throws if one has reported that it cannot.
  void check_joiners() const;

  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  Clock::time_point deadline() const { return deadline_; }

  std::string progress() const { return joined_.progress(); }

 private:
  std::shared_ptr<Segment> try_join(const RendezvousKey& key, Fd connection);
  std::shared_ptr<Segment> map(int connection, const RendezvousKey& key, const Fd& file) const;
  void check_deadline(std::chrono::seconds grace = {}) const;
  void check_missing() const;
  friend class RendezvousHost;

  const int nranks_;
  const int rank_;
  const Watch watch_;
  const std::chrono::seconds timeout_;
  const Clock::time_point deadline_;
  std::atomic<bool> cancelled_{false};
  JoinedRanks joined_;
  std::unique_ptr<RendezvousHost> host_;  // if this rank is it
};

}  // namespace hostnccl
