// Rendezvous (bootstrap) of the ranks that hold the same unique id. The first rank binds the socket
// of that name and is the host, within its own init call. The others send it join requests. When
// all have joined, each rank gets the memory of the segment; on an error each gets the reason.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "hostnccl/base/flag.h"
#include "hostnccl/rendezvous/rendezvous_socket.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

class Rendezvous {
 public:
  // Liveness check of a rank that has not joined; throws if it no longer can.
  using Watch = std::function<void(int rank)>;

  Rendezvous(int nranks, int rank, Watch watch = {});

  // Blocks until all ranks have joined. Throws on an error of any rank, at the deadline
  // (HOSTNCCL_INIT_TIMEOUT), and after cancel().
  std::shared_ptr<Segment> run(const RendezvousName& name);

  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  Clock::time_point deadline() const { return deadline_; }

  std::string progress() const;  // "2 of 4 ranks have joined; missing: 1, 3"

 private:
  std::shared_ptr<Segment> try_join(const RendezvousName& name, Fd connection);
  void check_deadline(std::chrono::seconds grace = {}) const;
  void set_joined(const RankSet& joined);
  RankSet joined() const;
  std::string missing_text(
      const RankSet& joined) const;  // "; missing: 1, 3", empty if there is none
  void check_missing() const;
  friend class RendezvousHost;

  const int nranks_;
  const int rank_;
  const Watch watch_;
  const std::chrono::seconds timeout_;
  const Clock::time_point deadline_;
  std::atomic<bool> cancelled_{false};
  mutable std::mutex mutex_;
  RankSet joined_;
};

}  // namespace hostnccl
