// Comparison: compares the calls of all ranks before an operation is issued (Config.check). The
// bindings provide the exchange. For collectives, all ranks wait for each other. For a send and its
// receive, the later rank compares, and neither waits.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/operation.h"

namespace pynccl {

class Communicator;

class Comparison {
 public:
  // The collectives that a rank of a communicator is about to issue.
  struct Item {
    Communicator* communicator;
    std::uint64_t number;  // the number of the first of these collectives
    std::string text;      // "all_reduce(float32, count=4, sum)", several joined by ", "
    // The collectives since the last comparison, with their numbers.
    std::vector<std::pair<std::uint64_t, std::string>> before;
  };

  struct Message {
    Communicator* communicator;
    bool sends;
    int peer;
    std::uint64_t number;  // among the messages between the two ranks in this direction
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

  inline static Exchange exchange_ = nullptr;
};

}  // namespace pynccl
