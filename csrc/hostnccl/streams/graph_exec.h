// A graph ready to be launched. Each branch of it runs in a thread: the first on the stream of the
// launch, the others in queues of their own.
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

  // After what is on the stream (none: the calling thread) and after the launch before. The graph's
  // operations take their places in the order of their communicators now.
  void launch(const Ref<Stream>& stream);

  bool is_of_this_process() const { return graph_->is_of_this_process(); }

 private:
  class Run;

  const Ref<Graph> graph_;
  const std::vector<std::vector<size_t>> branches_;  // the nodes of each
  std::vector<Ref<Stream>> queues_;                  // of the branches but the first
  std::mutex mutex_;
  std::shared_ptr<Event::Record> last_;  // the end of the last launch
};

HandleTable<Graph>& graphs();
HandleTable<GraphExec>& graph_execs();

}  // namespace hostnccl
