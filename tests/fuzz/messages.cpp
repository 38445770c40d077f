// Fuzz target: the parser of rendezvous messages, on arbitrary bytes.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "hostnccl/rendezvous/messages.h"

using namespace hostnccl;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Checks the properties on which the recipients of a message rely.
template <typename T>
void check(const T& message) {
  if constexpr (std::is_same_v<T, JoinRequest>) {
    RankSet ranks;
    ranks.set(static_cast<size_t>(message.rank));
    require(message.rank < message.nranks && message.nranks <= kMaxRanks);
    require(message.process().pid == message.pid && message.pid > 0);
  } else if constexpr (std::is_same_v<T, Progress>) {
    require(message.host_rank >= 0 && message.host_rank < kMaxRanks);
    require(message.joined.count() <= kMaxRanks);
  } else if constexpr (std::is_same_v<T, Failure>) {
    require(message.error().text().size() < sizeof message.text);
    require(std::strcmp(result_text(message.error().code()), "unknown result code") != 0);
  } else if constexpr (std::is_same_v<T, MemoryFile>) {
    require(message.rank >= 0 && message.rank < kMaxRanks);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::optional<Message> parsed = parse_message(std::as_bytes(std::span(data, size)));
  if (!parsed) return 0;
  std::visit(
      [&](const auto& message) {
        require(size == sizeof message && std::memcmp(&message, data, size) == 0);
        check(message);
      },
      *parsed);
  return 0;
}
