// The beginning of a connection, in which both sides prove that they know the key of their
// rendezvous. A user id is not enough: in a user namespace all unknown users have the same.
#pragma once

#include <poll.h>

#include <functional>
#include <vector>

#include "hostnccl/base/flag.h"
#include "hostnccl/rendezvous/messages.h"

namespace hostnccl {

// The side that connects.
class ConnectingSide {
 public:
  explicit ConnectingSide(const RendezvousKey& key)
      : key_(key), nonce_(random_bytes<sizeof(Nonce)>()) {}

  bool send_hello(int connection) const;
  // False if the other side does not know the key.
  bool send_answer(int connection, const Challenge& challenge) const;

 private:
  RendezvousKey key_;
  Nonce nonce_;
};

// The side that listens. The number of connections without proof is limited, and so is their time;
// those of other users are closed at once. So no process can keep a rank from joining for long, or
// the owner of this object from looking at its deadline.
class JoinListener {
 public:
  JoinListener(Fd listener, const RendezvousKey& key) : key_(key), listener_(std::move(listener)) {}

  void add_to(std::vector<pollfd>& waits) const;  // what advance() waits for
  // Continues with all connections, does not block, and returns those that are proven now. Throws
  // when no descriptor is free.
  std::vector<Fd> advance();
  bool has_pending() const { return !pending_.empty(); }  // connections that are not proven yet

 private:
  struct Pending {
    Fd connection;
    Nonce connecting{};
    Nonce listening{};
    bool challenged = false;
    bool proven = false;
    Clock::time_point since = Clock::now();
  };

  void accept_some();
  void advance(Pending& pending) const;
  bool challenge(Pending& pending, const Message& message) const;

  RendezvousKey key_;
  Fd listener_;
  std::vector<Pending> pending_;  // in the order of their connections
};

}  // namespace hostnccl
