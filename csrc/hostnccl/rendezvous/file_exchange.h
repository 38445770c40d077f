// Exchange of memory files between ranks of different processes, as file descriptors over sockets.
// Each rank listens at a random key, which it publishes through the segment; of two ranks, the
// higher one connects. All sockets are closed at the end. No permission to access the memory of
// other processes is required.
#pragma once

#include <functional>
#include <vector>

#include "hostnccl/rendezvous/handshake.h"

namespace hostnccl {

class FileExchange {
 public:
  struct Peer {
    int rank;
    RendezvousKey key;
    Fd file = {};  // received; empty if the peer has given up
  };
  // Whether a rank has ended its exchange, so that it sends nothing more. Throws if it can no
  // longer take part.
  using HasEnded = std::function<bool(int rank)>;

  FileExchange();
  const RendezvousKey& key() const { return key_; }

  // Blocks until each peer has this rank's file and this rank has theirs, except for peers that
  // have given up. Throws if this process has no free descriptor.
  void run(int own_rank, int own_file, std::vector<Peer>& peers, const HasEnded& has_ended);

 private:
  RendezvousKey key_;
  JoinListener listener_;
};

}  // namespace hostnccl
