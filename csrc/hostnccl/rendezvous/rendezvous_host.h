// The host's side of a rendezvous: hears who has come, checks that they agree, and gives each the
// segment or the reason why there is none.
#pragma once

#include <memory>
#include <vector>

#include "hostnccl/rendezvous/rendezvous.h"

namespace hostnccl {

// The segment of that name in this process; fd is its memory, should it have to be mapped.
std::shared_ptr<Segment> map_segment(int fd, int nranks, const RendezvousName& name);

class RendezvousHost {
 public:
  RendezvousHost(Rendezvous& own, const RendezvousName& name, Fd listener);
  std::shared_ptr<Segment> run();

 private:
  struct Joiner {
    Fd connection;
    JoinRequest join_request{};
    bool said_join_request = false;
  };

  void gather();
  void receive();  // waits a moment for whatever comes
  void accept_all();
  void read_request(Joiner& joiner);
  void check(const JoinRequest& join_request) const;
  void check_key(const JoinRequest& join_request) const;
  void tell_reason(const Reply& reply) const;
  void tell_progress() const;
  std::shared_ptr<Segment> hand_out();
  [[noreturn]] void refuse(const Error& reason);

  Rendezvous& own_;
  const RendezvousName name_;
  const JoinRequest self_;
  Fd listener_;
  std::vector<Joiner> joiners_;
  Arrivals arrivals_;
  bool refusing_ = false;
  int arrived_ = 1;
  int most_claimed_;
};

}  // namespace hostnccl
