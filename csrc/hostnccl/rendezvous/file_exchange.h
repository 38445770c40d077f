// FileExchange: exchange of memory files between ranks of different processes, as file descriptors
// over sockets. Each rank listens at a random key, which it publishes through the segment. Of two
// ranks, the higher one connects. All sockets are closed at the end. The exchange requires no
// permission to access the memory of other processes.
#pragma once

#include <functional>
#include <vector>

#include "hostnccl/rendezvous/messages.h"

namespace hostnccl {

class FileExchange {
 public:
  struct Peer {
    int rank;
    RendezvousKey key;
    Fd file = {};  // the received file. Empty if the peer has given up
  };
  // Whether a rank has ended its exchange and sends nothing more. Throws if it can no longer take
  // part.
  using HasEnded = std::function<bool(int rank)>;

  FileExchange();
  const RendezvousKey& key() const { return key_; }

  // Blocks until this rank and each peer have each other's files, except for peers that have given
  // up. Throws if this process has no free descriptor.
  void run(int own_rank, int own_file, std::vector<Peer>& peers, const HasEnded& has_ended);

 private:
  RendezvousKey key_;
  JoinListener listener_;
};

}  // namespace hostnccl
