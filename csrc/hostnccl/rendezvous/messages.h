// Messages between ranks without shared memory: of a rendezvous, and of a file exchange. Each is
// one record, a struct of fixed size. parse_message() reads all of them.
//
// A connection begins with a handshake: Hello from the connecting rank, Challenge, and Answer,
// after which both ranks have proved that they know the key of their rendezvous. The user id alone
// does not suffice: in a user namespace all unmapped users have the same one.
#pragma once

#include <poll.h>

#include <bitset>
#include <optional>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "hostnccl/base/error.h"
#include "hostnccl/base/flag.h"
#include "hostnccl/base/keys.h"
#include "hostnccl/base/process.h"
#include "hostnccl/base/record_socket.h"
#include "hostnccl/rendezvous/encryption.h"
#include "hostnccl/segment/rank_state.h"

namespace hostnccl {

using Nonce = std::array<uint8_t, 16>;
using RankSet = std::bitset<kMaxRanks>;

enum class MessageKind : uint32_t {
  Hello = 1,
  Challenge,
  Answer,
  JoinRequest,
  Progress,
  Accepted,
  Failure,
  MemoryFile,
};

template <MessageKind kOwn>
struct MessageHeader {
  static constexpr uint32_t kMagic = 0x6c63636e;  // "nccl"
  uint32_t magic = kMagic;
  MessageKind kind = kOwn;
  bool has_own_kind() const { return magic == kMagic && kind == kOwn; }
};

struct Hello : MessageHeader<MessageKind::Hello> {
  Nonce nonce;
};

struct Challenge : MessageHeader<MessageKind::Challenge> {
  Nonce nonce;
  Proof proof;
};

struct Answer : MessageHeader<MessageKind::Answer> {
  Proof proof;
};

// From a joining rank to the host.
struct JoinRequest : MessageHeader<MessageKind::JoinRequest> {
  int32_t nranks;
  int32_t rank;
  int64_t pid;
  uint64_t start;
  KeyProof key;

  ProcessId process() const { return {static_cast<int32_t>(pid), start}; }
};

// From the host: the ranks that have joined.
struct Progress : MessageHeader<MessageKind::Progress> {
  int64_t host_rank;
  RankSet joined;
};

// All ranks have joined. Carries the descriptor of the memory.
struct Accepted : MessageHeader<MessageKind::Accepted> {};

// From the host: why no communicator is created. From a joiner: why it gives up.
struct Failure : MessageHeader<MessageKind::Failure>, ErrorRecord<1020> {
  static Failure of(const Error& error) {
    Failure failure{};
    failure.set(error);
    return failure;
  }
};

// From a rank that registers a window. Carries the descriptor of its memory.
struct MemoryFile : MessageHeader<MessageKind::MemoryFile> {
  int64_t rank;
};

using Message =
    std::variant<Hello, Challenge, Answer, JoinRequest, Progress, Accepted, Failure, MemoryFile>;

// Empty unless the bytes are exactly one message and all its fields are in range.
std::optional<Message> parse_message(std::span<const std::byte> bytes);

template <typename T>
bool send_message(int socket, const T& message, int passed_fd = -1) {
  static_assert(std::has_unique_object_representations_v<T>, "would send padding");
  return send_record(socket, std::as_bytes(std::span(&message, 1)), passed_fd);
}

// An invalid record is treated as the end of the connection.
Received receive_message(int socket, Message& message, Fd* passed_fd = nullptr);

// The proof of one side that it knows the key.
enum class Side : uint8_t { Connecting, Listening };
Proof prove(const RendezvousKey& key, Side side, const Nonce& connecting, const Nonce& listening);

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
  JoinListener(Socket listener, const RendezvousKey& key)
      : key_(key), listener_(std::move(listener)) {}

  void add_to(std::vector<pollfd>& waits) const;  // the descriptors that advance() reads
  // Processes all connections without blocking and returns those that are now proven. Throws if no
  // descriptor is free.
  std::vector<Socket> advance();
  bool has_pending() const { return !pending_.empty(); }  // connections without proof

 private:
  struct Pending {
    Socket connection;
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
  Socket listener_;
  std::vector<Pending> pending_;  // in the order of their connections
};

}  // namespace hostnccl
