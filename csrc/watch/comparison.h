// Comparison: before an operation is issued the ranks compare what they are about to call
// (Config.check). The bindings have the exchange. For collectives all ranks wait for each other. Of
// a message the rank that comes second compares; none waits.
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
    std::uint64_t number;  // of the first of these collectives among those of the communicator
    std::string text;      // "all_reduce(float32, count=4, sum)", of several with ", "
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

  // The exchange: throws where the ranks differ. One thread may have several ranks.
  using Exchange = void (*)(const std::vector<Item>& items, const std::vector<Message>& messages);
  static void set_exchange(Exchange exchange) { exchange_ = exchange; }
  static void observe();

  // The operations that a thread is about to issue together.
  using Operations = std::vector<std::pair<Communicator*, const Operation*>>;
  static void run(const Operations& operations);

 private:
  class Sink;

  static std::vector<Item> collectives(const Operations& operations);
  static std::vector<Message> messages(const Operations& operations);
  inline static Exchange exchange_ = nullptr;
};

}  // namespace pynccl
