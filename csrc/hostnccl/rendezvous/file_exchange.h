// How ranks in several processes hand each other the files of their memory: each binds a socket for
// the moment, tells the others its address through the memory that they share, and closes it when
// it has sent its file to all and has theirs. That asks for no right to look into other processes.
#pragma once

#include <functional>
#include <vector>

#include "hostnccl/base/record_socket.h"

namespace hostnccl {

class FileExchange {
 public:
  struct Address {
    RendezvousName name;    // of the socket: everybody on the machine can see it
    RendezvousName secret;  // proves that a sender has it from us
  };
  struct Peer {
    int rank;
    Address address;
    Fd file;  // received; empty when this process had no descriptor left for it
  };

  FileExchange();
  const Address& address() const { return address_; }

  // Blocks; calls check with a rank that is still missing about every 50 ms, which throws when that
  // one will not come any more.
  void run(int own_rank, int own_file, std::vector<Peer>& peers,
           const std::function<void(int)>& check);

 private:
  struct Letter {
    RendezvousName secret;
    int32_t rank;
  };

  bool receive_all(std::vector<Peer>& peers, std::vector<bool>& received) const;

  Address address_;
  Fd socket_;
};

}  // namespace hostnccl
