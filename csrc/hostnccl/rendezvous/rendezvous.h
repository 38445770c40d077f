// How ranks that hold the same unique id find each other. The first to come binds the meeting's
// socket and hosts it within its own init call; the others say join_request to it. When all have
// come they get the memory of their segment; when it cannot be, each gets the reason.
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
  // Throws if a rank that has not arrived never will, as far as is known.
  using Watch = std::function<void(int rank)>;

  Rendezvous(int nranks, int rank, Watch watch = {});

  // Blocks until the segment is complete. Throws when it cannot be, at the deadline, or after
  // cancel.
  std::shared_ptr<Segment> run(const RendezvousName& name);

  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  Clock::time_point deadline() const { return deadline_; }

  std::string progress() const;  // "2 of 4 ranks have arrived; missing: 1, 3"

 private:
  std::shared_ptr<Segment> try_as_client(const RendezvousName& name, Fd connection);
  void check_patience(std::chrono::seconds beyond = {}) const;
  void note(const Arrivals& arrivals);
  void check_missing() const;
  friend class RendezvousHost;

  const int nranks_;
  const int rank_;
  const Watch watch_;
  const std::chrono::seconds timeout_;
  const Clock::time_point deadline_;
  std::atomic<bool> cancelled_{false};
  mutable std::mutex mutex_;
  Arrivals arrivals_;
};

}  // namespace hostnccl
