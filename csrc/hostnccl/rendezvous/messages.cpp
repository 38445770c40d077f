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
void parse(std::span<const std::byte> bytes, std::optional<Message>& parsed) {
  T message;
  if (bytes.size() != sizeof message) return;
  std::memcpy(static_cast<void*>(&message), bytes.data(), sizeof message);
  if (message.has_own_kind() && in_range(message)) parsed = message;
}

template <typename... Kinds>
std::optional<Message> parse_any(std::span<const std::byte> bytes,
                                 const std::variant<Kinds...>* /*of*/) {
  std::optional<Message> parsed;
  (parse<Kinds>(bytes, parsed), ...);
  return parsed;
}

constexpr size_t kMaxPending = 128;
constexpr auto kTimeToProve = std::chrono::seconds(2);          // with fewer than kMaxPending
constexpr auto kTimeWhenFull = std::chrono::milliseconds(100);  // a rank then connects again

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

bool ConnectingSide::send_hello(int connection) const {
  Hello hello{};
  hello.nonce = nonce_;
  return send_message(connection, hello);
}

bool ConnectingSide::send_answer(int connection, const Challenge& challenge) const {
  if (!same_proof(challenge.proof, prove(key_, Side::Listening, nonce_, challenge.nonce))) {
    return false;
  }
  Answer answer{};
  answer.proof = prove(key_, Side::Connecting, nonce_, challenge.nonce);
  send_message(connection, answer);  // if the other side is gone, the next receive reports it
  return true;
}

void JoinListener::add_to(std::vector<pollfd>& waits) const {
  for (const Pending& pending : pending_) waits.push_back({pending.connection.get(), POLLIN, 0});
  if (pending_.size() < kMaxPending) waits.push_back({listener_.get(), POLLIN, 0});
}

std::vector<Socket> JoinListener::advance() {
  accept_some();
  const bool full = pending_.size() >= kMaxPending;
  const auto oldest = Clock::now() - (full ? Clock::duration(kTimeWhenFull) : kTimeToProve);
  std::vector<Socket> proven;
  for (Pending& pending : pending_) {
    advance(pending);
    if (pending.proven) proven.push_back(std::move(pending.connection));
  }
  std::erase_if(pending_, [oldest](const Pending& pending) {
    return !pending.connection || pending.since < oldest;
  });
  return proven;
}

void JoinListener::accept_some() {
  while (pending_.size() < kMaxPending) {
    Socket connection = try_accept(listener_.get());
    if (!connection) return;
    pending_.emplace_back().connection = std::move(connection);
  }
}

void JoinListener::advance(Pending& pending) const {
  Message message;
  while (pending.connection && !pending.proven) {
    const Received received = receive_message(pending.connection.get(), message);
    if (received == Received::Nothing) return;
    if (received == Received::Closed || !challenge(pending, message)) pending.connection = {};
  }
}

// The next step. False if the message is wrong.
bool JoinListener::challenge(Pending& pending, const Message& message) const {
  if (!pending.challenged) {
    const Hello* hello = std::get_if<Hello>(&message);
    if (hello == nullptr) return false;
    pending.challenged = true;
    pending.connecting = hello->nonce;
    pending.listening = random_bytes<sizeof(Nonce)>();
    Challenge challenge{};
    challenge.nonce = pending.listening;
    challenge.proof = prove(key_, Side::Listening, pending.connecting, pending.listening);
    return send_message(pending.connection.get(), challenge);
  }
  const Answer* answer = std::get_if<Answer>(&message);
  pending.proven = answer != nullptr &&
                   same_proof(answer->proof,
                              prove(key_, Side::Connecting, pending.connecting, pending.listening));
  return pending.proven;
}

}  // namespace hostnccl
