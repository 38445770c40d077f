#include "comm/graph.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <optional>
#include <utility>

#include "comm/observer.h"
#include "nccl/device.h"
#include "nccl/wait.h"

namespace pynccl {
namespace {

constexpr double kDeviceWaitSeconds = 0.05;  // time for a DeviceWait to check for captures
constexpr std::size_t kMaxLaunches = 64;     // the launches that a failing host function marks

std::mutex graphs_mutex;

std::vector<Graph*>& all_graphs() {
  static std::vector<Graph*>& graphs = *new std::vector<Graph*>;
  return graphs;
}

// The executable is destroyed in relaxed mode, because otherwise that would invalidate a capture of
// this thread, or a global capture of another thread.
std::shared_ptr<CUgraphExec_st> instantiate(const std::shared_ptr<Library>& library,
                                            CUgraph graph) {
  CUgraphExec exec = nullptr;
  DRIVER_CHECK(*library, GraphInstantiateWithFlags, (&exec, graph, 0));
  return {exec, [library](CUgraphExec one) {
            const RelaxedMode relaxed(*library);
            library->driver().GraphExecDestroy(one);
          }};
}

std::string name_of(const Communicator& communicator) {
  const int rank = communicator.known_rank();
  return rank < 0 ? "a communicator" : "the communicator of rank " + std::to_string(rank);
}

}  // namespace

// Connects the graphs to the communicators that they use.
class Graph::Uses final : public Observer {
 public:
  // Adds the operation to the graph that its stream is captured into.
  void before_operation(const OperationEvent& event) override {
    if (!any_capture()) return;
    const Library& library = event.communicator.library();
    const std::optional<cuuint64_t> id = capture_id(library, event.operation.stream);
    if (!id) return;
    const std::lock_guard lock(graphs_mutex);
    Graph* graph = captured_into(library, *id);
    if (!graph) return;
    auto used = find(graph->used_, event.communicator);
    if (used == graph->used_.end())
      used = graph->used_.insert(used, {event.communicator.shared_from_this(), {}, nullptr});
    event.communicator.deadlines().mark_captured();
    used->operations.push_back(event.communicator.deadlines().recorder().last() + 1);
  }

  // Invalidates the graphs of the communicator. Refuses to close it during a capture that uses it.
  void before_close(const Communicator& communicator, bool aborted) override {
    const auto uses = [&](std::vector<Used>& used) {
      return find(used, communicator) != used.end();
    };
    std::vector<Exec> freed;  // after the lock is released
    const std::lock_guard lock(graphs_mutex);
    for (Graph* graph : all_graphs())
      if (!aborted && graph->state_ == State::kCapturing && uses(graph->used_))
        throw std::invalid_argument(
            "communicator: a capture in progress uses it; leave the with block first");
    for (Graph* graph : all_graphs()) {
      if (!uses(graph->used_)) continue;
      if (graph->closed_communicator_.empty()) graph->closed_communicator_ = name_of(communicator);
      if (graph->state_ != State::kReady) continue;
      graph->state_ = State::kInvalidated;
      freed.push_back(std::move(graph->exec_));
    }
    for (Retired& one : retired())
      if (one.exec && uses(one.used)) freed.push_back(std::move(one.exec));
  }

 private:
  static std::vector<Used>::iterator find(std::vector<Used>& used,
                                          const Communicator& communicator) {
    return std::find_if(used.begin(), used.end(),
                        [&](const Used& one) { return one.communicator.get() == &communicator; });
  }
};

void Graph::observe() { Observers::add(*new Uses, Observers::kBefore); }

// Operations are observed while there are captures.
void Graph::count_capture(int change) {
  captures_.fetch_add(change);
  change > 0 ? Observers::observe_operations() : Observers::stop_operations();
}

Graph::Graph(std::shared_ptr<Library> library, CUstream stream, int device,
             CUstreamCaptureMode mode)
    : library_(std::move(library)), stream_(stream), device_(device), mode_(mode) {
  free_retired();
  const std::lock_guard lock(graphs_mutex);
  all_graphs().push_back(this);
}

Graph::~Graph() {
  if (state_ == State::kCapturing) end_capture();  // destroyed before its capture has ended
  retire();
  const std::lock_guard lock(graphs_mutex);
  std::erase(all_graphs(), this);
}

void Graph::begin() {
  {
    const std::lock_guard lock(graphs_mutex);
    if (state_ != State::kNew)
      throw std::invalid_argument("graph: it was already captured; create another one");
  }
  const DeviceScope scope(*library_, device_);
  device_ = scope.device();  // another one may be current at a launch
  events_ = std::make_shared<EventPool>(library_, device_);
  count_capture(+1);  // from now on no DeviceWait is allowed
  try {
    poll_until(kDeviceWaitSeconds, [] { return device_waits_.load() == 0; });
    DRIVER_CHECK(*library_, StreamBeginCapture, (stream_, mode_));
  } catch (...) {
    count_capture(-1);
    throw;
  }
  const std::optional<cuuint64_t> id = capture_id(*library_, stream_);
  const std::lock_guard lock(graphs_mutex);
  id_ = id.value_or(0);
  thread_ = std::this_thread::get_id();
  state_ = State::kCapturing;
}

void Graph::end(bool failed) {
  {
    const std::lock_guard lock(graphs_mutex);
    if (state_ != State::kCapturing) throw std::invalid_argument("graph: it is not being captured");
    if (thread_ != std::this_thread::get_id())
      throw std::runtime_error("graph: its capture began on another thread");
    state_ = State::kFailed;
  }
  const DeviceScope scope(*library_, device_);
  const auto [result, graph] = end_capture();
  if (failed) return retire();
  try {
    if (result != CUDA_SUCCESS)
      throw_driver(*library_, result, "cuStreamEndCapture", __FILE__, __LINE__);
    std::size_t size = 0;
    DRIVER_CHECK(*library_, GraphGetNodes, (graph.get(), nullptr, &size));
    Exec created = instantiate(library_, graph.get());
    const std::lock_guard lock(graphs_mutex);
    for (Used& used : used_) used.what = std::make_shared<const std::string>(used.text());
    size_ = size;
    state_ = closed_communicator_.empty() ? State::kReady : State::kInvalidated;
    if (state_ == State::kReady) exec_ = std::move(created);
  } catch (...) {
    retire();
    throw;
  }
}

std::pair<CUresult, std::shared_ptr<CUgraph_st>> Graph::end_capture() {
  CUgraph graph = nullptr;
  {
    const std::lock_guard lock(graphs_mutex);
    for (const Used& used : used_)
      for (const std::uint64_t operation : used.operations)
        used.communicator->deadlines().recorder().set_captured(operation);
  }
  const CUresult result = library_->driver().StreamEndCapture(stream_, &graph);
  count_capture(-1);
  free_retired();
  const auto destroy = [library = library_](CUgraph captured) {
    if (captured) library->driver().GraphDestroy(captured);
  };
  return {result, {graph, destroy}};
}

// "a graph launch with all_reduce #5 (float32, count=4, sum)"
std::string Graph::Used::text() const {
  std::string text = "a graph launch with ";
  if (operations.size() > 1) text += std::to_string(operations.size()) + " operations up to ";
  const auto record = communicator->deadlines().recorder().read(operations.back());
  return text + (record ? record->text() : "#" + std::to_string(operations.back()));
}

bool Graph::Retired::in_use() const noexcept {
  try {
    return exec || (launched && !(*launched)->query());
  } catch (const DriverFailure&) {  // a failed device runs nothing
    return false;
  }
}

std::vector<Graph::Retired>& Graph::retired() {
  static std::vector<Retired>& all = *new std::vector<Retired>;
  return all;
}

// Frees the resources after the lock is released, because that may run Python code.
void Graph::free_retired() noexcept {
  std::vector<Retired> unused;
  std::vector<Exec> execs;  // freed before the communicators
  const std::lock_guard lock(graphs_mutex);
  if (!any_capture())
    for (Retired& one : retired())
      if (one.exec) execs.push_back(std::move(one.exec));
  const auto first = std::partition(retired().begin(), retired().end(),
                                    [](const Retired& one) { return one.in_use(); });
  std::move(first, retired().end(), std::back_inserter(unused));
  retired().erase(first, retired().end());
}

// Frees the executable immediately, because ncclCommDestroy waits until it is gone. The driver
// first completes a launch in flight. During a capture, which the destruction might invalidate, the
// executable is freed at the end of the capture.
void Graph::retire() noexcept {
  {
    const std::lock_guard launch_lock(launching_);
    const std::lock_guard lock(graphs_mutex);
    retired().push_back({std::move(launched_), std::exchange(used_, {}), std::exchange(held_, {}),
                         std::exchange(exec_, {})});
  }
  free_retired();
}

void Graph::close() {
  {
    const std::lock_guard lock(graphs_mutex);
    if (state_ == State::kCapturing)
      throw std::invalid_argument("graph: it is being captured; leave its with block first");
    state_ = State::kClosed;
  }
  retire();
}

Graph::Exec Graph::exec() const {
  const std::lock_guard lock(graphs_mutex);
  check_expired();
  if (state_ != State::kReady) throw std::invalid_argument("graph: " + why_not_ready());
  return exec_;
}

void Graph::launch(CUstream stream) const {
  const std::lock_guard launch_lock(launching_);
  const Exec running = exec();
  const DeviceScope scope(*library_, device_);
  // The driver would refuse it as well, and invalidate the capture.
  if (is_capturing(*library_, stream))
    throw std::invalid_argument(
        "graph: the stream is being captured, and a launch cannot be captured into another graph; "
        "capture the operations themselves");
  std::list<Deadlines::Call> calls;  // on CPUs the graph may run in this thread
  for (const Used& used : used_)
    calls.emplace_back(used.communicator->deadlines(), "cuGraphLaunch");
  if (!library_->reports_failed_work() && launches_.use_count() > 1) launches_->add(stream);
  std::unique_ptr<Observation> observed = Observers::launches({library_, device_, id_, stream});
  try {
    DRIVER_CHECK(*library_, GraphLaunch, (running.get(), stream));
  } catch (const WorkFailure& failure) {
    check_failed_work(*library_, failure);
    throw NcclFailure(failure);
  } catch (const DriverFailure& failure) {
    Observers::driver_failed();
    check_expired(failure.what());
    throw;
  }
  observed.reset();
  watch_launch(stream);
}

// Throws if a communicator has expired. cause: the driver's error, or empty.
void Graph::check_expired(const std::string& cause) const {
  for (const Used& used : used_)
    if (used.communicator->expired()) throw used.communicator->expiry("cuGraphLaunch", cause);
}

void Graph::watch_launch(CUstream stream) const {
  {
    const RelaxedMode relaxed(*library_);
    if (!launched_ || launched_.use_count() > 1)
      launched_ = std::make_shared<const PooledEvent>(events_->acquire());
    (*launched_)->record(stream);
  }
  for (const Used& used : used_)
    used.communicator->deadlines().launched(used.what, stream, launched_);
}

std::string Graph::why_not_ready() const {
  switch (state_) {
    case State::kNew:
      return "nothing was captured; use it in a with statement first";
    case State::kCapturing:
      return "it is being captured; leave its with block first";
    case State::kFailed:
      return "an error ended its capture; create another one";
    case State::kInvalidated:
      return closed_communicator_ + " was closed; capture the graph again";
    default:
      return "it is closed";
  }
}

std::string Graph::text() const {
  const std::lock_guard lock(graphs_mutex);
  if (state_ != State::kReady) return "not ready: " + why_not_ready();
  return "of " + std::to_string(size_) + (size_ == 1 ? " node" : " nodes");
}

Graph* Graph::captured_into(const Library& library, cuuint64_t id) {
  for (Graph* graph : all_graphs())
    if (graph->state_ == State::kCapturing && graph->id_ == id && graph->library_.get() == &library)
      return graph;
  return nullptr;
}

bool Graph::keep_alive(const Library& library, CUstream stream, std::shared_ptr<void> object) {
  const std::optional<cuuint64_t> id = capture_id(library, stream);
  if (!id) return false;
  const std::lock_guard lock(graphs_mutex);
  Graph* graph = captured_into(library, *id);
  if (graph) graph->held_.push_back(std::move(object));
  return graph != nullptr;
}

void Graph::Launches::add(CUstream stream) {
  const std::lock_guard lock(mutex_);
  last_.push_back({stream, precise_time()});
  if (last_.size() > kMaxLaunches) last_.pop_front();
}

std::vector<CUstream> Graph::Launches::streams(std::int64_t& since) const {
  const std::lock_guard lock(mutex_);
  std::vector<CUstream> streams;
  for (const Launch& launch : last_) streams.push_back(launch.stream);
  if (!last_.empty()) since = last_.front().time;
  return streams;
}

std::shared_ptr<const Graph::Launches> Graph::launches(const Library& library, CUstream stream) {
  const std::optional<cuuint64_t> id = capture_id(library, stream);
  if (!id) return nullptr;
  const std::lock_guard lock(graphs_mutex);
  const Graph* graph = captured_into(library, *id);
  return graph ? graph->launches_ : nullptr;
}

CUstream Graph::redirect(const Library& library, CUstream current) {
  if (capture_id(library, current)) return current;
  const std::lock_guard lock(graphs_mutex);
  for (auto graph = all_graphs().rbegin(); graph != all_graphs().rend(); ++graph)
    if ((*graph)->state_ == State::kCapturing && (*graph)->library_.get() == &library &&
        (*graph)->thread_ == std::this_thread::get_id())
      return (*graph)->stream_;
  return current;
}

}  // namespace pynccl
