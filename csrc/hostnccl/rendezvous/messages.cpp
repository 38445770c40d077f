#include "hostnccl/rendezvous/messages.h"

#include <algorithm>
#include <cstring>

namespace hostnccl {
namespace {

bool is_rank(int64_t rank) { return rank >= 0 && rank < kMaxRanks; }

template <typename T>
bool in_range(const T&) {
  return true;
}

template <>
bool in_range(const JoinRequest& request) {
  return request.nranks > 0 && request.nranks <= kMaxRanks && request.rank >= 0 &&
         request.rank < request.nranks && request.pid > 0 && request.pid <= INT32_MAX;
}

template <>
bool in_range(const Progress& progress) {
  return is_rank(progress.host_rank);
}

template <>
bool in_range(const Failure& failure) {
  return failure.code > abi::ncclSuccess && failure.code < abi::ncclNumResults &&
         failure.code != abi::ncclInProgress &&
         std::memchr(failure.text, 0, sizeof failure.text) != nullptr;
}

template <>
bool in_range(const MemoryFile& file) {
  return is_rank(file.rank);
}

template <typename T>
bool parse(std::span<const std::byte> bytes, std::optional<Message>& parsed) {
  T message;
  if (bytes.size() != sizeof message) return false;
  std::memcpy(static_cast<void*>(&message), bytes.data(), sizeof message);
  if (!message.has_own_kind() || !in_range(message)) return false;
  parsed = message;
  return true;
}

template <typename... Kinds>
std::optional<Message> parse_any(std::span<const std::byte> bytes,
                                 const std::variant<Kinds...>* /*of*/) {
  std::optional<Message> parsed;
  (parse<Kinds>(bytes, parsed) || ...);
  return parsed;
}

}  // namespace

std::optional<Message> parse_message(std::span<const std::byte> bytes) {
  return parse_any(bytes, static_cast<const Message*>(nullptr));
}

Received receive_message(int socket, Message& message, Fd* passed_fd) {
  std::byte buffer[sizeof(Message) + 1];  // the extra byte detects longer records
  size_t length = 0;
  const Received received = receive_record(socket, buffer, length, passed_fd);
  if (received != Received::Message) return received;
  const std::optional<Message> parsed = parse_message({buffer, length});
  if (!parsed) return Received::Closed;
  message = *parsed;
  return received;
}

Proof prove(const RendezvousKey& key, Side side, const Nonce& connecting, const Nonce& listening) {
  std::array<uint8_t, 1 + 2 * sizeof(Nonce)> text;
  text[0] = static_cast<uint8_t>(side);
  std::copy(connecting.begin(), connecting.end(), text.begin() + 1);
  std::copy(listening.begin(), listening.end(), text.begin() + 1 + sizeof(Nonce));
  return hmac(key, text);
}

}  // namespace hostnccl
