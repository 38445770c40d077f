#include "hostnccl/streams/graph.h"

#include <algorithm>

#include "hostnccl/base/delay.h"
#include "hostnccl/operations/progress_engine.h"
#include "hostnccl/streams/device_error.h"

namespace hostnccl {
namespace {

void check(const Ref<Communicator>& comm) {
  if (!comm.slot()->open.load(std::memory_order_acquire)) {
    const std::string& name = comm->settings().name;
    throw DeviceError(abi::CUDA_ERROR_ILLEGAL_STATE,
                      format("the graph needs the communicator%s%s of rank %d of %d, which was "
                             "destroyed",
                             name.empty() ? "" : " ", name.c_str(), comm->rank(), comm->nranks()));
  }
  try {
    comm->check_usable();
  } catch (Error& error) {
    throw DeviceError(std::make_shared<StreamFailure>(error.set_origin(comm.slot())));
  }
}

void check(const Ref<Window>& window) {
  if (!window || window.slot()->open.load(std::memory_order_acquire)) return;
  throw DeviceError(abi::CUDA_ERROR_ILLEGAL_STATE,
                    "the graph writes to a window that was deregistered");
}

std::vector<std::vector<size_t>> nodes_of_branches(const Graph& graph) {
  std::vector<std::vector<size_t>> branches(std::max<size_t>(graph.branches(), 1));
  for (size_t i = 0; i < graph.nodes().size(); ++i) branches[graph.nodes()[i].branch].push_back(i);
  return branches;
}

}  // namespace

size_t Graph::branches() const {
  size_t branches = 0;
  for (const Node& node : nodes_) branches = std::max(branches, node.branch + 1);
  return branches;
}

size_t Graph::add(Node node) {
  nodes_.push_back(std::move(node));
  return nodes_.size() - 1;
}

bool Graph::finish(std::vector<size_t> final_nodes) {
  final_nodes_ = std::move(final_nodes);
  std::vector<bool> joined(nodes_.size());
  for (const size_t index : final_nodes_) joined[index] = true;
  for (size_t index = nodes_.size(); index-- > 0;) {
    if (!joined[index]) return false;
    for (const size_t earlier : nodes_[index].dependencies) joined[earlier] = true;
  }
  return true;
}

void Graph::check_usable() const {
  for (const Node& node : nodes_) {
    const auto* operations = std::get_if<std::vector<NodeOperation>>(&node.payload);
    if (operations == nullptr) continue;
    for (const NodeOperation& operation : *operations) {
      check(operation.comm);
      check(operation.window);
    }
  }
}

// One launch of a graph, shared by the threads of its branches.
class GraphExec::Launch {
 public:
  // previous_end: the end of the previous launch, or null.
  Launch(Ref<Graph> graph, const Ref<Stream>& stream, std::shared_ptr<EventRecord> previous_end)
      : graph_(std::move(graph)),
        stream_(stream),
        previous_end_(std::move(previous_end)),
        ignored_(previous_end_ && previous_end_->done() ? reported(previous_end_->failure())
                                                        : nullptr),
        reported_(stream ? stream->reported_failure() : nullptr),
        engines_(graph_->nodes().size()),
        node_done_(std::make_unique<Flag[]>(graph_->nodes().size())),
        node_failures_(graph_->nodes().size()) {
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

  void prepare(OperationOrders& orders) {
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

  // The first branch, on the stream of the launch. It starts and completes the launch.
  void run_first_branch(const std::vector<size_t>& branch, EventRecord& end) {
    if (previous_end_) previous_end_->wait();
    SharedFailure failure;
    if (previous_end_ && previous_end_->failure() != ignored_) failure = previous_end_->failure();
    before_ = failure = inherit(failure);
    started_.signal(1);
    run(branch);
    for (const size_t index : graph_->final_nodes()) {
      wait(node_done_[index]);
      if (!failure) failure = node_failures_[index];
    }
    end.complete(inherit(failure));
  }
  void run_other_branch(const std::vector<size_t>& branch) {
    wait(started_);
    run(branch);
  }

 private:
  static SharedFailure reported(const SharedFailure& failure) {
    return failure && failure->reported ? failure : nullptr;
  }

  // Makes a failure, if there is one, that of the stream. Returns that of the launch.
  SharedFailure inherit(const SharedFailure& failure) {
    if (!stream_) return failure;
    if (failure && failure != before_) stream_->set_failure(failure->error);
    return stream_->failure_besides(reported_);
  }

  // If the wait is interrupted, this rank completes none of the remaining operations. The other
  // ranks get the reason, and the branches end.
  void wait(Flag& flag) {
    const WaitCondition done{&flag, 1};
    try {
      sleep_in_process(done);
    } catch (...) {
      fail_operations();
      while (!done.met()) sleep_on(done, kCheckInterval);
    }
  }

  void fail_operations() const {
    for (size_t i = 0; i < engines_.size(); ++i) {
      if (!engines_[i] || node_done_[i].reached(1)) continue;
      for (const auto& operation :
           std::get<std::vector<Graph::NodeOperation>>(graph_->nodes()[i].payload))
        operation.comm->fail_interrupted();
    }
  }

  void run(const std::vector<size_t>& branch) {
    for (const size_t index : branch) {
      const Graph::Node& node = graph_->nodes()[index];
      SharedFailure& failure = node_failures_[index];
      if (node.dependencies.empty()) failure = before_;
      for (const size_t earlier : node.dependencies) {
        wait(node_done_[earlier]);
        if (!failure) failure = node_failures_[earlier];
      }
      Delay::pause();
      try {
        run_node(index);
      } catch (...) {
        if (!failure) failure = std::make_shared<StreamFailure>(current_error());
      }
      node_done_[index].signal(1);
    }
  }

  void run_node(size_t index) {
    if (const auto& engine = engines_[index]) {
      if (const std::optional<Error> error = engine->run()) throw *error;
    } else {
      std::get<Graph::Function>(graph_->nodes()[index].payload)(node_failures_[index]);
    }
  }

  const Ref<Graph> graph_;
  const Ref<Stream> stream_;
  const std::shared_ptr<EventRecord> previous_end_;
  const SharedFailure ignored_;                           // of previous_end_, since it was reported
  const SharedFailure reported_;                          // of stream_, likewise
  SharedFailure before_;                                  // the failure before the launch
  std::vector<std::unique_ptr<ProgressEngine>> engines_;  // one per node; null: a host function
  const std::unique_ptr<Flag[]> node_done_;               // one per node
  // Per node, once it is done: its own failure or that of a preceding node.
  std::vector<SharedFailure> node_failures_;
  Flag started_;
};

GraphExec::GraphExec(Ref<Graph> graph)
    : graph_(std::move(graph)), branches_(nodes_of_branches(*graph_)) {
  for (size_t branch = 1; branch < branches_.size(); ++branch) {
    branch_streams_.push_back(handles<Stream>().open(std::make_unique<Stream>()));
  }
}

GraphExec::~GraphExec() {
  for (const Ref<Stream>& stream : branch_streams_) {
    handles<Stream>().close(stream);
    if (stream->is_of_this_process()) stream->close();
  }
}

void GraphExec::launch(const Ref<Stream>& stream) {
  const auto end = std::make_shared<EventRecord>();
  // A copy for the queued branches, which may outlive this object.
  const auto branches = std::make_shared<const std::vector<std::vector<size_t>>>(branches_);
  std::shared_ptr<Launch> launch;
  {
    std::unique_lock lock(mutex_);  // all streams get the launches in the same order
    // Everything that can fail comes before the first sequence number, and so does the wait of the
    // calling thread, which may be interrupted.
    while (!stream && last_end_ && !last_end_->done()) {
      const auto previous_end = last_end_;
      lock.unlock();
      previous_end->wait();
      lock.lock();
    }
    graph_->check_usable();
    launch = std::make_shared<Launch>(graph_, stream, last_end_);
    OperationOrders orders;
    launch->prepare(orders);
    std::vector<Stream::Prepared> prepared;
    for (size_t branch = 1; branch < branches->size(); ++branch) {
      prepared.emplace_back(branch_streams_[branch - 1], [launch, branches, branch] {
        launch->run_other_branch((*branches)[branch]);
      });
    }
    if (stream) {
      prepared.emplace_back(
          stream, [launch, branches, end] { launch->run_first_branch((*branches)[0], *end); });
    }
    const EnqueueLock enqueue_lock(std::move(orders));
    launch->take_sequences();
    for (Stream::Prepared& callback : prepared) callback.enqueue();
    last_end_ = end;
    if (stream) return;
  }
  launch->run_first_branch((*branches)[0], *end);
  if (!end->failure()) return;
  end->failure()->reported = true;
  throw DeviceError(end->failure());
}

}  // namespace hostnccl
