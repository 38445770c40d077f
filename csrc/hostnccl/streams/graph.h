// Recorded work: nodes, each after those that it depends on, in the order in which they were
// captured.
#pragma once

#include <functional>
#include <variant>
#include <vector>

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class Graph {
 public:
  struct Call {
    Ref<Communicator> comm;
    Operation operation;
    Ref<Window> window;  // that a put writes to
  };
  // A function, or operations that are one launch.
  using Work = std::variant<std::function<void()>, std::vector<Call>>;

  struct Node {
    std::vector<size_t> after;  // earlier nodes
    size_t branch;              // the stream that it was captured on: its nodes are in order
    Work work;
  };

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<size_t>& last() const { return last_; }  // all others come before one of these
  size_t branches() const;
  bool is_of_this_process() const { return generation_ == fork_generation(); }

  size_t add(Node node);
  // True if every node is one of these or comes before one.
  bool end_with(std::vector<size_t> last);

  // Throws where a communicator is gone or cannot take operations, or a window is gone.
  void check_usable() const;

 private:
  const uint32_t generation_ = fork_generation();
  std::vector<Node> nodes_;
  std::vector<size_t> last_;
};

}  // namespace hostnccl
