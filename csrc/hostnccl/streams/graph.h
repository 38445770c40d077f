// Graph: a captured graph. Its nodes are in the order of capture, each with the earlier nodes on
// which it depends.
#pragma once

#include <functional>
#include <variant>
#include <vector>

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/communicator/operation.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

class Graph {
 public:
  struct NodeOperation {
    NodeOperation(const Ref<Communicator>& its_comm, const Operation& its_operation,
                  const Ref<Window>& its_window)
        : comm(its_comm), operation(its_operation), window(its_window) {
      operation.captured = true;
    }
    Ref<Communicator> comm;
    Operation operation;
    Ref<Window> window;  // the destination of a put
  };
  // A host function, which receives the failure of the preceding nodes, or operations that one
  // progress engine runs together.
  using Function = std::function<void(const SharedFailure&)>;
  using Payload = std::variant<Function, std::vector<NodeOperation>>;

  struct Node {
    std::vector<size_t> dependencies;  // indices of earlier nodes
    size_t branch;                     // of its stream, on which nodes run in order
    Payload payload;
  };

  const std::vector<Node>& nodes() const { return nodes_; }
  // Every node is a final node or an ancestor of one, so the graph is done when they are.
  const std::vector<size_t>& final_nodes() const { return final_nodes_; }
  size_t branches() const;
  bool is_of_this_process() const { return generation_ == fork_generation(); }

  size_t add(Node node);
  // Sets the final nodes at the end of the capture. False if a branch was not joined: a node is
  // neither one of them nor an ancestor of one.
  bool finish(std::vector<size_t> final_nodes);

  // Throws if a communicator is destroyed or cannot take operations, or a window is deregistered.
  void check_usable() const;

 private:
  const uint32_t generation_ = fork_generation();
  std::vector<Node> nodes_;
  std::vector<size_t> final_nodes_;
};

}  // namespace hostnccl
