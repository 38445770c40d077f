// The handshake of a connection, in which both sides prove that they know the key of their
// rendezvous. The user id alone does not suffice: in a user namespace all unmapped users have the
// same one.
#pragma once

#include <poll.h>

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

// The listening side. It limits the number and the time of connections without proof, and closes
// connections from other users immediately. No process can therefore stall a join, or prevent the
// owner of this object from checking its deadline.
class JoinListener {
 public:
  JoinListener(Fd listener, const RendezvousKey& key) : key_(key), listener_(std::move(listener)) {}

  void add_to(std::vector<pollfd>& waits) const;  // the descriptors that advance() reads
  // Processes all connections without blocking and returns those that are now proven. Throws if no
  // descriptor is free.
  std::vector<Fd> advance();
  bool has_pending() const { return !pending_.empty(); }  // connections without proof

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
