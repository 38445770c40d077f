// An instantiated graph, which can be launched any number of times. Each branch is one captured
// stream: the first runs on the stream of the launch, the others on streams that belong to the
// graph. Flags between the nodes replace the captured events.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "hostnccl/streams/event.h"
#include "hostnccl/streams/graph.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

class GraphExec {
 public:
  explicit GraphExec(Ref<Graph> graph);
  ~GraphExec();

  // Runs the graph after the work of the stream (null: immediately in the calling thread, throwing
  // failures) and after the previous launch of this graph, whose failure it inherits unless it was
  // already reported to a caller. Its operations take their sequence numbers in this call.
  void launch(const Ref<Stream>& stream);

  bool is_of_this_process() const { return graph_->is_of_this_process(); }

 private:
  class Launch;

  const Ref<Graph> graph_;
  const std::vector<std::vector<size_t>> branches_;  // the nodes of each
  std::vector<Ref<Stream>> branch_streams_;          // of every branch but the first
  std::mutex mutex_;
  std::shared_ptr<Event::Record> last_end_;  // the end of the last launch
};

HandleTable<Graph>& graphs();
HandleTable<GraphExec>& graph_execs();

}  // namespace hostnccl
