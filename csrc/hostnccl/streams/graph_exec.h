// GraphExec: an instantiated graph, which can be launched any number of times. A branch is the work
// of one captured stream. The first branch runs on the stream of the launch, the others on streams
// that belong to the graph. Flags between the nodes replace the captured events.
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
