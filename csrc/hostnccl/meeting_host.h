// The host's side of a rendezvous: hears who has come, checks that they agree, and gives each the
// world or the reason why there is none.
#pragma once

#include <memory>
#include <vector>

#include "hostnccl/rendezvous.h"

namespace hostnccl {

// The world of that name in this process; fd is its memory, should it have to be mapped.
std::shared_ptr<World> map_world(int fd, int nranks, const MeetingName& name);

class MeetingHost {
 public:
  MeetingHost(Rendezvous& own, const MeetingName& name, Fd listener);
  std::shared_ptr<World> run();

 private:
  struct Guest {
    Fd connection;
    Hello hello{};
    bool said_hello = false;
  };

  void gather();
  void receive();  // waits a moment for whatever comes
  void accept_all();
  void hear(Guest& guest);
  void check(const Hello& hello) const;
  void check_key(const Hello& hello) const;
  void tell_reason(const Reply& reply) const;
  void tell_progress() const;
  std::shared_ptr<World> hand_out();
  [[noreturn]] void refuse(const Error& reason);

  Rendezvous& own_;
  const MeetingName name_;
  const Hello self_;
  Fd listener_;
  std::vector<Guest> guests_;
  Arrivals arrivals_;
  bool refusing_ = false;
  int arrived_ = 1;
  int most_claimed_;
};

}  // namespace hostnccl
