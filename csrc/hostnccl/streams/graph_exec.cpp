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

void wait(Flag& counter) { sleep_until({&counter, 1}); }

}  // namespace

HandleTable<Graph>& graphs() {
  static HandleTable<Graph>& table = *new HandleTable<Graph>;
  return table;
}

HandleTable<GraphExec>& graph_execs() {
  static HandleTable<GraphExec>& table = *new HandleTable<GraphExec>;
  return table;
}

// One launch, shared by its branches.
class GraphExec::Run {
 public:
  Run(Ref<Graph> graph, const Ref<Stream>& stream)
      : graph_(std::move(graph)),
        stream_(stream),
        launches_(graph_->nodes().size()),
        done_(std::make_unique<Flag[]>(graph_->nodes().size())) {
    for (size_t i = 0; i < launches_.size(); ++i) {
      const auto* calls = std::get_if<std::vector<Graph::Call>>(&graph_->nodes()[i].work);
      if (calls == nullptr) continue;
      launches_[i] = std::make_unique<ProgressEngine>();
      for (const Graph::Call& call : *calls) {
        launches_[i]->add(call.comm, call.operation, call.window);
      }
    }
  }

  void take_tickets() {
    for (const auto& launch : launches_) {
      if (launch) launch->take_sequences();
    }
  }

  // The branch on the stream of the launch, which begins and ends it.
  void lead(const std::vector<size_t>& branch, Event::Record* before, Event::Record& end) {
    if (before != nullptr) before->wait();
    begun_.signal(1);
    run(branch);
    for (const size_t index : graph_->last()) wait(done_[index]);
    end.complete();
  }
  void follow(const std::vector<size_t>& branch) {
    wait(begun_);
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
      for (const size_t before : node.after) wait(done_[before]);
      Delay::pause();
      try {
        run(index);
      } catch (...) {
        note_failure(current_error());
      }
      done_[index].signal(1);
    }
  }

  void run(size_t index) {
    if (const auto& launch = launches_[index]) {
      if (const std::optional<Error> error = launch->run()) throw *error;
    } else {
      std::get<std::function<void()>>(graph_->nodes()[index].work)();
    }
  }

  void note_failure(const Error& error) {
    if (stream_) return stream_->note_failure();
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
  }

  const Ref<Graph> graph_;
  const Ref<Stream> stream_;
  std::vector<std::unique_ptr<ProgressEngine>> launches_;  // of the nodes that are one
  const std::unique_ptr<Flag[]> done_;                     // of the nodes
  Flag begun_;
  mutable std::mutex mutex_;
  std::optional<Error> error_;
};

GraphExec::GraphExec(Ref<Graph> graph)
    : graph_(std::move(graph)), branches_(nodes_of_branches(*graph_)) {
  for (size_t branch = 1; branch < branches_.size(); ++branch) {
    queues_.push_back(streams().open(std::make_unique<Stream>()));
  }
}

GraphExec::~GraphExec() {
  for (const Ref<Stream>& queue : queues_) {
    streams().close(queue);
    if (queue->is_of_this_process()) queue->close();
  }
}

void GraphExec::launch(const Ref<Stream>& stream) {
  graph_->check_usable();
  const auto run = std::make_shared<Run>(graph_, stream);
  const auto end = std::make_shared<Event::Record>();
  // The branches may outlive this object.
  const auto branches = std::make_shared<const std::vector<std::vector<size_t>>>(branches_);
  std::shared_ptr<Event::Record> before;
  {
    const std::lock_guard lock(mutex_);  // so that all queues have launches in the same order
    before = std::exchange(last_, end);
    run->take_tickets();
    for (size_t branch = 1; branch < branches->size(); ++branch) {
      Stream::enqueue(queues_[branch - 1],
                      [run, branches, branch] { run->follow((*branches)[branch]); });
    }
    if (stream) {
      Stream::enqueue(
          stream, [run, branches, before, end] { run->lead((*branches)[0], before.get(), *end); });
      return;
    }
  }
  run->lead((*branches)[0], before.get(), *end);
  if (const std::optional<Error> error = run->error()) throw *error;
}

}  // namespace hostnccl
