// Exchange of memory files between ranks of different processes, as file descriptors over sockets.
// Each rank binds a socket and publishes its address through the segment. It closes the socket when
// it has sent its file to all peers and received theirs. This needs no right to access the memory
// of other processes.
#pragma once

#include <functional>
#include <vector>

#include "hostnccl/base/record_socket.h"

namespace hostnccl {

class FileExchange {
 public:
  struct Address {
    RendezvousName name;    // of the socket, visible to all processes of the machine
    RendezvousName secret;  // shows that a sender has read this address in the segment
  };
  struct Peer {
    int rank;
    Address address;
    Fd file;  // received; empty if this process had no free descriptor for it
  };

  FileExchange();
  const Address& address() const { return address_; }

  // Blocks until all files are exchanged. About every 50 ms it calls check with a missing rank,
  // which throws if that rank can no longer take part.
  void run(int own_rank, int own_file, std::vector<Peer>& peers,
           const std::function<void(int)>& check);

 private:
  struct Message {
    RendezvousName secret;
    int32_t rank;
  };

  bool receive_all(std::vector<Peer>& peers, std::vector<bool>& received) const;

  Address address_;
  Fd socket_;
};

}  // namespace hostnccl
