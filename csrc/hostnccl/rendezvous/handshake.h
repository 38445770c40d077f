// The handshake of a connection, in which both sides prove that they know the key of their
// rendezvous. A user id is not enough: in a user namespace all unknown users have the same one.
#pragma once

#include <poll.h>

#include <functional>
#include <vector>

#include "hostnccl/base/flag.h"
#include "hostnccl/rendezvous/messages.h"

namespace hostnccl {

// The connecting side.
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

// The listening side. Both the number of connections without proof and their time are limited, and
// connections from other users are closed immediately. Thus no process can stall a join, or keep
// the owner of this object from checking its deadline.
class JoinListener {
 public:
  JoinListener(Fd listener, const RendezvousKey& key) : key_(key), listener_(std::move(listener)) {}

  void add_to(std::vector<pollfd>& waits) const;  // what advance() waits for
  // Continues with all connections without blocking, and returns those that are now proven. Throws
  // if no descriptor is free.
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
