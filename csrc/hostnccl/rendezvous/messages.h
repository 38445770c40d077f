// Messages between ranks that have no shared memory yet: of a rendezvous, and of an exchange of
// files. Each is one record, a struct of fixed size, and all are read by parse_message().
//
// A connection begins with Hello from the connecting rank, Challenge, and Answer. Both ranks have
// then proved that they know the key.
#pragma once

#include <bitset>
#include <optional>
#include <span>
#include <type_traits>
#include <variant>

#include "hostnccl/base/error.h"
#include "hostnccl/base/process.h"
#include "hostnccl/base/record_socket.h"
#include "hostnccl/base/secrets.h"
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

// From a rank that has joined, to the host.
struct JoinRequest : MessageHeader<MessageKind::JoinRequest> {
  int32_t nranks;
  int32_t rank;
  int64_t pid;
  uint64_t start;
  KeyProof key;

  ProcessId process() const { return {static_cast<int32_t>(pid), start}; }
};

// From the host: which ranks have joined.
struct Progress : MessageHeader<MessageKind::Progress> {
  int64_t host_rank;
  RankSet joined;
};

// All ranks have joined. Carries the descriptor of the memory.
struct Accepted : MessageHeader<MessageKind::Accepted> {};

// From the host: why there will be no communicator. From a joiner: why it gives up.
struct Failure : MessageHeader<MessageKind::Failure> {
  uint32_t code;
  char text[1020];  // ends with a zero

  static Failure of(const Error& error);
  Error error() const { return Error(static_cast<abi::ncclResult_t>(code), text); }
};

// The memory of a rank that registers a window. Carries the descriptor.
struct MemoryFile : MessageHeader<MessageKind::MemoryFile> {
  int64_t rank;
};

using Message =
    std::variant<Hello, Challenge, Answer, JoinRequest, Progress, Accepted, Failure, MemoryFile>;

// Empty unless the bytes are exactly a message, all of whose fields are in range.
std::optional<Message> parse_message(std::span<const std::byte> bytes);

template <typename T>
bool send_message(int socket, const T& message, int passed_fd = -1) {
  static_assert(std::has_unique_object_representations_v<T>, "would send padding");
  return send_record(socket, std::as_bytes(std::span(&message, 1)), passed_fd);
}

// An invalid record counts as the end of the connection.
Received receive_message(int socket, Message& message, Fd* passed_fd = nullptr);

// Proofs of the two sides that they know the key.
enum class Side : uint8_t { Connecting, Listening };
Proof prove(const RendezvousKey& key, Side side, const Nonce& connecting, const Nonce& listening);

}  // namespace hostnccl
