#include "hostnccl/graph_exec.h"

#include <algorithm>

#include "hostnccl/delay.h"
#include "hostnccl/launch.h"

namespace hostnccl {
namespace {

std::vector<std::vector<size_t>> nodes_of_lanes(const Graph& graph) {
  std::vector<std::vector<size_t>> lanes(std::max<size_t>(graph.lanes(), 1));
  for (size_t i = 0; i < graph.nodes().size(); ++i) lanes[graph.nodes()[i].lane].push_back(i);
  return lanes;
}

void wait(Counter& counter) { sleep_until({&counter, 1}); }

}  // namespace

HandleTable<Graph>& graphs() {
  static HandleTable<Graph>& table = *new HandleTable<Graph>;
  return table;
}

HandleTable<GraphExec>& graph_execs() {
  static HandleTable<GraphExec>& table = *new HandleTable<GraphExec>;
  return table;
}

// One launch, shared by its lanes.
class GraphExec::Run {
 public:
  Run(Ref<Graph> graph, const Ref<Stream>& stream)
      : graph_(std::move(graph)),
        stream_(stream),
        launches_(graph_->nodes().size()),
        done_(std::make_unique<Counter[]>(graph_->nodes().size())) {
    for (size_t i = 0; i < launches_.size(); ++i) {
      const auto* calls = std::get_if<std::vector<Graph::Call>>(&graph_->nodes()[i].work);
      if (calls == nullptr) continue;
      launches_[i] = std::make_unique<Launch>();
      for (const Graph::Call& call : *calls) {
        launches_[i]->add(call.comm, call.operation, call.window);
      }
    }
  }

  void take_tickets() {
    for (const auto& launch : launches_) {
      if (launch) launch->take_tickets();
    }
  }

  // The lane on the stream of the launch, which begins and ends it.
  void lead(const std::vector<size_t>& lane, Event::Record* before, Event::Record& end) {
    if (before != nullptr) before->wait();
    begun_.raise(1);
    run(lane);
    for (const size_t index : graph_->last()) wait(done_[index]);
    end.complete();
  }
  void follow(const std::vector<size_t>& lane) {
    wait(begun_);
    run(lane);
  }

  std::optional<Error> error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  void run(const std::vector<size_t>& lane) {
    for (const size_t index : lane) {
      const Graph::Node& node = graph_->nodes()[index];
      for (const size_t before : node.after) wait(done_[before]);
      Delay::pause();
      try {
        run(index);
      } catch (...) {
        note_failure(current_error());
      }
      done_[index].raise(1);
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
  std::vector<std::unique_ptr<Launch>> launches_;  // of the nodes that are one
  const std::unique_ptr<Counter[]> done_;          // of the nodes
  Counter begun_;
  mutable std::mutex mutex_;
  std::optional<Error> error_;
};

GraphExec::GraphExec(Ref<Graph> graph) : graph_(std::move(graph)), lanes_(nodes_of_lanes(*graph_)) {
  for (size_t lane = 1; lane < lanes_.size(); ++lane) {
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
  // The lanes may outlive this object.
  const auto lanes = std::make_shared<const std::vector<std::vector<size_t>>>(lanes_);
  std::shared_ptr<Event::Record> before;
  {
    const std::lock_guard lock(mutex_);  // so that all queues have launches in the same order
    before = std::exchange(last_, end);
    run->take_tickets();
    for (size_t lane = 1; lane < lanes->size(); ++lane) {
      Stream::enqueue(queues_[lane - 1], [run, lanes, lane] { run->follow((*lanes)[lane]); });
    }
    if (stream) {
      Stream::enqueue(stream,
                      [run, lanes, before, end] { run->lead((*lanes)[0], before.get(), *end); });
      return;
    }
  }
  run->lead((*lanes)[0], before.get(), *end);
  if (const std::optional<Error> error = run->error()) throw *error;
}

}  // namespace hostnccl
