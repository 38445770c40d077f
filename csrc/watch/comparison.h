// Comparison: before issuing an operation the ranks compare their calls (Config.check). The
// bindings provide the exchange. For collectives all ranks wait for each other. For a send and its
// receive the later rank compares, and neither waits.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/operation.h"

namespace pynccl {

class Comparison {
 public:
  // What a rank of a communicator is about to issue.
  struct Item {
    Communicator* communicator;
    std::uint64_t number;  // of the first of these collectives in the communicator
    std::string text;      // "all_reduce(float32, count=4, sum)", several joined by ", "
    // Those since the last comparison, by their numbers.
    std::vector<std::pair<std::uint64_t, std::string>> before;
  };

  struct Message {
    Communicator* communicator;
    bool sends;
    int peer;
    std::uint64_t number;  // of those between the two ranks, in this direction
    std::string text;      // "float32, count=4"
  };

  // The exchange. Throws if the ranks differ. One thread may run several ranks.
  using Exchange = void (*)(const std::vector<Item>& items, const std::vector<Message>& messages);
  static void set_exchange(Exchange exchange) { exchange_ = exchange; }
  static void observe();

  // The operations that a thread is about to issue as a group.
  using Operations = std::vector<std::pair<Communicator*, const Operation*>>;
  static void run(const Operations& operations);

 private:
  class Sink;

  static std::vector<Item> collectives(const Operations& operations);
  static std::vector<Message> messages(const Operations& operations);
  inline static Exchange exchange_ = nullptr;
};

}  // namespace pynccl
