#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/communicator/operation.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

// A captured graph. Its nodes are in the order of capture, each with the earlier nodes on
// which it depends.
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

// An instantiated graph, which can be launched any number of times. A branch is the work
// of one captured stream. The first branch runs on the stream of the launch, the others on streams
// that belong to the graph. Flags between the nodes replace the captured events.
class GraphExec {
 public:
  explicit GraphExec(Ref<Graph> graph);
  ~GraphExec();

  // Runs the graph after the work of the stream, and after the previous launch of this graph, whose
  // failure it inherits unless it was already reported to a caller. A null stream runs it in the
  // calling thread and throws failures. The operations take their sequence numbers in this call.
  void launch(const Ref<Stream>& stream);

  bool is_of_this_process() const { return graph_->is_of_this_process(); }

 private:
  class Launch;

  const Ref<Graph> graph_;
  const std::vector<std::vector<size_t>> branches_;  // the nodes of each
  std::vector<Ref<Stream>> branch_streams_;          // of every branch but the first
  std::mutex mutex_;
  std::shared_ptr<EventRecord> last_end_;  // the end of the last launch
};

}  // namespace hostnccl
