#include "hostnccl/streams/graph_exec.h"

#include <algorithm>

#include "hostnccl/base/delay.h"
#include "hostnccl/operations/progress_engine.h"

namespace hostnccl {
namespace {

std::vector<std::vector<size_t>> nodes_of_branches(const Graph& graph) {
  std::vector<std::vector<size_t>> branches(std::max<size_t>(graph.branches(), 1));
  for (size_t i = 0; i < graph.nodes().size(); ++i) branches[graph.nodes()[i].branch].push_back(i);
  return branches;
}

void wait(Flag& flag) { sleep_in_process({&flag, 1}); }

}  // namespace

HandleTable<Graph>& graphs() {
  static HandleTable<Graph>& table = *new HandleTable<Graph>;
  return table;
}

HandleTable<GraphExec>& graph_execs() {
  static HandleTable<GraphExec>& table = *new HandleTable<GraphExec>;
  return table;
}

// One launch of a graph, shared by the threads of its branches.
class GraphExec::Launch {
 public:
  Launch(Ref<Graph> graph, const Ref<Stream>& stream)
      : graph_(std::move(graph)),
        stream_(stream),
        engines_(graph_->nodes().size()),
        node_done_(std::make_unique<Flag[]>(graph_->nodes().size())) {
    for (size_t i = 0; i < engines_.size(); ++i) {
      const Graph::Node& node = graph_->nodes()[i];
      const auto* operations = std::get_if<std::vector<Graph::NodeOperation>>(&node.payload);
      if (operations == nullptr) continue;
      engines_[i] = std::make_unique<ProgressEngine>();
      for (const Graph::NodeOperation& operation : *operations) {
        engines_[i]->add(operation.comm, operation.operation, operation.window);
      }
    }
  }

  void prepare(std::vector<OperationOrder*>& orders) {
    for (const auto& engine : engines_) {
      if (!engine) continue;
      engine->prepare();
      engine->add_orders(orders);
    }
  }
  void take_sequences() noexcept {
    for (const auto& engine : engines_) {
      if (engine) engine->take_sequences();
    }
  }

  // The first branch runs on the stream of the launch. It starts the launch and completes it.
  void run_first_branch(const std::vector<size_t>& branch, Event::Record* previous_end,
                        Event::Record& end) {
    if (previous_end != nullptr) previous_end->wait();
    started_.signal(1);
    run(branch);
    for (const size_t index : graph_->final_nodes()) wait(node_done_[index]);
    end.complete();
  }
  void run_other_branch(const std::vector<size_t>& branch) {
    wait(started_);
    run(branch);
  }

  std::optional<Error> error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  void run(const std::vector<size_t>& branch) {
    for (const size_t index : branch) {
      const Graph::Node& node = graph_->nodes()[index];
      for (const size_t earlier : node.dependencies) wait(node_done_[earlier]);
      Delay::pause();
      try {
        run_node(index);
      } catch (...) {
        set_error(current_error());
      }
      node_done_[index].signal(1);
    }
  }

  void run_node(size_t index) {
    if (const auto& engine = engines_[index]) {
      if (const std::optional<Error> error = engine->run()) throw *error;
    } else {
      std::get<std::function<void()>>(graph_->nodes()[index].payload)();
    }
  }

  void set_error(const Error& error) {
    if (stream_) return stream_->set_failure(error);
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
  }

  const Ref<Graph> graph_;
  const Ref<Stream> stream_;
  std::vector<std::unique_ptr<ProgressEngine>> engines_;  // one per node; null: a host function
  const std::unique_ptr<Flag[]> node_done_;               // one per node
  Flag started_;
  mutable std::mutex mutex_;
  std::optional<Error> error_;  // the first one, where no stream can report it
};

GraphExec::GraphExec(Ref<Graph> graph)
    : graph_(std::move(graph)), branches_(nodes_of_branches(*graph_)) {
  for (size_t branch = 1; branch < branches_.size(); ++branch) {
    branch_streams_.push_back(streams().open(std::make_unique<Stream>()));
  }
}

GraphExec::~GraphExec() {
  for (const Ref<Stream>& stream : branch_streams_) {
    streams().close(stream);
    if (stream->is_of_this_process()) stream->close();
  }
}

void GraphExec::launch(const Ref<Stream>& stream) {
  graph_->check_usable();
  const auto launch = std::make_shared<Launch>(graph_, stream);
  const auto end = std::make_shared<Event::Record>();
  // A copy that the queued branches share: they may outlive this object.
  const auto branches = std::make_shared<const std::vector<std::vector<size_t>>>(branches_);
  // Before the first sequence number, all that can fail.
  std::vector<OperationOrder*> orders;
  launch->prepare(orders);
  std::shared_ptr<Event::Record> previous_end;
  {
    const std::lock_guard lock(mutex_);  // all streams get the launches in the same order
    std::vector<Stream::Prepared> prepared;
    for (size_t branch = 1; branch < branches->size(); ++branch) {
      prepared.emplace_back(branch_streams_[branch - 1], [launch, branches, branch] {
        launch->run_other_branch((*branches)[branch]);
      });
    }
    if (stream) {
      prepared.emplace_back(stream, [launch, branches, previous = last_end_, end] {
        launch->run_first_branch((*branches)[0], previous.get(), *end);
      });
    }
    const EnqueueLock enqueue_lock(std::move(orders));
    launch->take_sequences();
    for (Stream::Prepared& callback : prepared) callback.enqueue();
    previous_end = std::exchange(last_end_, end);
    if (stream) return;
  }
  launch->run_first_branch((*branches)[0], previous_end.get(), *end);
  if (const std::optional<Error> error = launch->error()) throw *error;
}

}  // namespace hostnccl
