#include "hostnccl/rendezvous/file_exchange.h"

#include <algorithm>
#include <cerrno>

#include "hostnccl/base/error.h"

namespace hostnccl {
namespace {

using Peer = FileExchange::Peer;

constexpr int kConnectAgainMs = 1;

// The file that a rank has sent. Throws if this process had no free descriptor to receive it.
Fd checked(Fd file, int rank) {
  if (!file) {
    fail(abi::ncclSystemError, "this process has no free file descriptor for the memory of rank %d",
         rank);
  }
  return file;
}

// A connection to a lower rank.
class Outgoing {
 public:
  explicit Outgoing(Peer& peer) : peer_(peer), name_(peer.key), handshake_(peer.key) {}

  const Peer& peer() const { return peer_; }
  int descriptor() const { return connection_.get(); }

  // Takes the next step without blocking. False if there was nothing to do.
  bool advance(const MemoryFile& own, int own_file) {
    if (peer_.file) return false;
    if (!connection_) {
      connection_ = try_connect(name_);
      if (!connection_ || !peer_is_same_user(connection_.get())) return close();
      if (!handshake_.send_hello(connection_.get())) return close();
    }
    Message message;
    Fd file;
    const Received received = receive_message(connection_.get(), message, &file);
    if (received == Received::Nothing) return false;
    if (received == Received::Closed) return close();
    if (!proven_) {
      const auto* challenge = std::get_if<Challenge>(&message);
      proven_ = challenge != nullptr && handshake_.send_answer(connection_.get(), *challenge);
      if (!proven_ || !send_message(connection_.get(), own, own_file)) return close();
    } else if (const auto* theirs = std::get_if<MemoryFile>(&message);
               theirs != nullptr && theirs->rank == peer_.rank) {
      peer_.file = checked(std::move(file), peer_.rank);
    }
    return true;
  }

 private:
  bool close() {
    connection_ = {};
    proven_ = false;
    return false;
  }

  Peer& peer_;
  SocketName name_;
  ConnectingSide handshake_;
  Socket connection_;
  bool proven_ = false;
};

// A connection from a higher rank.
class Incoming {
 public:
  explicit Incoming(Socket connection) : connection_(std::move(connection)) {}

  int descriptor() const { return connection_.get(); }

  // The same. The peer's file counts only after this rank's file has been sent.
  bool advance(std::vector<Peer>& peers, const MemoryFile& own, int own_file) {
    if (!connection_) return false;
    if (peer_ == nullptr) {
      Message message;
      if (receive_message(connection_.get(), message, &file_) == Received::Nothing) return false;
      const auto* theirs = std::get_if<MemoryFile>(&message);
      const auto from = std::find_if(peers.begin(), peers.end(), [&](const Peer& peer) {
        return theirs != nullptr && peer.rank == theirs->rank && peer.rank > own.rank;
      });
      if (from == peers.end()) return close();  // or the connection was closed
      peer_ = &*from;
    }
    if (peer_->file) return false;
    if (!send_message(connection_.get(), own, own_file)) {
      return errno == EPIPE ? close() : false;  // else too many descriptors are in transit
    }
    peer_->file = checked(std::move(file_), peer_->rank);
    return true;
  }

 private:
  bool close() {
    connection_ = {};
    return false;
  }

  Socket connection_;
  Peer* peer_ = nullptr;
  Fd file_;
};

Socket listen_at(const RendezvousKey& key) {
  Socket listener = try_bind(SocketName(key));
  if (!listener) fail(abi::ncclSystemError, "the name of a new socket is in use");
  return listener;
}

}  // namespace

FileExchange::FileExchange() : key_(random_key()), listener_(listen_at(key_), key_) {}

void FileExchange::run(int own_rank, int own_file, std::vector<Peer>& peers,
                       const HasEnded& has_ended) {
  MemoryFile own{};
  own.rank = own_rank;
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (Peer& peer : peers) {
    if (peer.rank < own_rank) outgoing.emplace_back(peer);
  }
  std::vector<const Peer*> ended;  // their last messages are still read once
  auto checked = Clock::now();
  for (;;) {
    bool progressed = false;
    for (Outgoing& link : outgoing) progressed |= link.advance(own, own_file);
    for (Socket& connection : listener_.advance()) incoming.emplace_back(std::move(connection));
    for (Incoming& link : incoming) progressed |= link.advance(peers, own, own_file);
    if (progressed) continue;

    std::vector<const Peer*> missing;
    for (const Peer& peer : peers) {
      const bool gave_up = std::find(ended.begin(), ended.end(), &peer) != ended.end();
      if (!peer.file && !gave_up) missing.push_back(&peer);
    }
    if (missing.empty()) return;
    std::vector<pollfd> waits;
    listener_.add_to(waits);
    bool connected = true;
    for (const Outgoing& link : outgoing) {
      if (link.peer().file) continue;
      waits.push_back({link.descriptor(), POLLIN, 0});
      connected &= link.descriptor() >= 0;
    }
    for (const Incoming& link : incoming) waits.push_back({link.descriptor(), POLLIN, 0});
    poll(waits.data(), waits.size(), connected ? int(kCheckInterval.count()) : kConnectAgainMs);
    if (Clock::now() - checked < kCheckInterval) continue;
    checked = Clock::now();
    for (const Peer* peer : missing) {
      if (has_ended(peer->rank)) ended.push_back(peer);
    }
  }
}

}  // namespace hostnccl
