// Host of a rendezvous: collects the join requests, checks that they agree, and sends each joiner
// the segment or the reason for a refusal.
#pragma once

#include <memory>
#include <vector>

#include "hostnccl/rendezvous/rendezvous.h"

namespace hostnccl {

// The segment of that name in this process. Maps it from fd if it is not mapped yet.
std::shared_ptr<Segment> map_segment(int fd, int nranks, const RendezvousName& name);

class RendezvousHost {
 public:
  RendezvousHost(Rendezvous& rendezvous, const RendezvousName& name, Fd listener);
  std::shared_ptr<Segment> run();

 private:
  struct Joiner {
    Fd connection;
    JoinRequest request{};
    bool has_request = false;
  };

  void collect_requests();
  void poll_once();  // accepts connections and reads requests
  void accept_all();
  void read_request(Joiner& joiner);
  void check(const JoinRequest& request) const;
  void check_key(const JoinRequest& request) const;
  void send_to_joiners(const Reply& reply) const;
  void send_progress() const;
  std::shared_ptr<Segment> send_segment();
  [[noreturn]] void refuse(const Error& reason);

  Rendezvous& rendezvous_;
  const RendezvousName name_;
  const JoinRequest self_;
  Fd listener_;
  std::vector<Joiner> joiners_;
  RankSet joined_;
  bool refusing_ = false;
  int requests_ = 1;    // of joiners, and this rank's own
  int largest_nranks_;  // of all requests
};

}  // namespace hostnccl
