// The open communicators of the process, oldest first.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace pynccl {

class Communicator;
class Deadlines;

class OpenCommunicators {
 public:
  struct Entry {
    std::shared_ptr<Deadlines> deadlines;
    std::weak_ptr<Communicator> communicator;
  };

  static void add(const std::shared_ptr<Deadlines>& deadlines,
                  std::weak_ptr<Communicator> communicator);
  static void remove(const Deadlines& deadlines);

  static std::vector<Entry> all();
  static std::vector<std::shared_ptr<Communicator>> communicators();
  static std::optional<std::int64_t> shortest_limit();  // own_limit(); none without communicators
};

}  // namespace pynccl
