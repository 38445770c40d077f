#include "core/graph.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "core/device.h"

namespace pynccl {
namespace {

std::mutex graphs_mutex;

std::vector<Graph*>& all_graphs() {
  static std::vector<Graph*>& graphs = *new std::vector<Graph*>;
  return graphs;
}

std::string name_of(const Communicator& communicator) {
  const int rank = communicator.known_rank();
  return rank < 0 ? "a communicator" : "the communicator of rank " + std::to_string(rank);
}

// Of the capture that the stream takes part in. One that has been invalidated goes nowhere.
std::optional<cuuint64_t> capture_id(const Library& library, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  const CUresult result =
      library.driver().StreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr);
  if (result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return std::nullopt;
  return id;
}

}  // namespace

class Graph::Exec {
 public:
  Exec(std::shared_ptr<Library> library, CUgraph graph) : library_(std::move(library)) {
    DRIVER_CHECK(*library_, GraphInstantiateWithFlags, (&handle_, graph, 0));
  }
  Exec(const Exec&) = delete;
  Exec& operator=(const Exec&) = delete;
  ~Exec() {
    if (handle_) library_->driver().GraphExecDestroy(handle_);
  }
  CUgraphExec handle() const { return handle_; }

 private:
  std::shared_ptr<Library> library_;
  CUgraphExec handle_ = nullptr;
};

Graph::Graph(std::shared_ptr<Library> library, CUstream stream, int device,
             CUstreamCaptureMode mode)
    : library_(std::move(library)), stream_(stream), device_(device), mode_(mode) {
  sweep();
  const std::lock_guard lock(graphs_mutex);
  all_graphs().push_back(this);
}

Graph::~Graph() {
  if (state_ == State::kCapturing) {  // left behind: its thread never came to end it
    captures_.fetch_sub(1, std::memory_order_relaxed);
    take_captured();
  }
  drop();
  const std::lock_guard lock(graphs_mutex);
  std::erase(all_graphs(), this);
}

void Graph::begin() {
  {
    const std::lock_guard lock(graphs_mutex);
    if (state_ != State::kNew)
      throw std::invalid_argument("graph: it was captured before; make another one");
  }
  const DeviceScope scope(*library_, device_);
  DRIVER_CHECK(*library_, StreamBeginCapture, (stream_, mode_));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  library_->driver().StreamGetCaptureInfo(stream_, &status, &id, nullptr, nullptr, nullptr);
  const std::lock_guard lock(graphs_mutex);
  id_ = id;
  thread_ = std::this_thread::get_id();
  state_ = State::kCapturing;
  captures_.fetch_add(1, std::memory_order_relaxed);
}

void Graph::end(bool failed) {
  {
    const std::lock_guard lock(graphs_mutex);
    if (state_ != State::kCapturing) throw std::invalid_argument("graph: it is not being captured");
    if (thread_ != std::this_thread::get_id())
      throw std::runtime_error("graph: another thread has begun its capture");
    state_ = State::kFailed;
    captures_.fetch_sub(1, std::memory_order_relaxed);
  }
  const DeviceScope scope(*library_, device_);
  const Captured captured = take_captured();
  if (failed) return drop();
  if (captured.result != CUDA_SUCCESS) {
    drop();
    throw_driver(*library_, captured.result, "cuStreamEndCapture", __FILE__, __LINE__);
  }
  try {
    std::size_t size = 0;
    DRIVER_CHECK(*library_, GraphGetNodes, (captured.graph.get(), nullptr, &size));
    finish(std::make_shared<const Exec>(library_, captured.graph.get()), size);
  } catch (...) {
    drop();
    throw;
  }
}

Graph::Captured Graph::take_captured() {
  CUgraph graph = nullptr;
  const CUresult result = library_->driver().StreamEndCapture(stream_, &graph);
  return {result, std::unique_ptr<CUgraph_st, Destroy>(graph, Destroy{library_.get()})};
}

void Graph::Destroy::operator()(CUgraph graph) const { library->driver().GraphDestroy(graph); }

void Graph::finish(std::shared_ptr<const Exec> made, std::size_t size) {
  const std::lock_guard lock(graphs_mutex);
  size_ = size;
  state_ = lost_.empty() ? State::kReady : State::kBroken;
  if (state_ == State::kReady) exec_ = std::move(made);
}

bool Graph::Kept::in_use() const noexcept {
  try {
    return launched && !launched->query();
  } catch (const DriverFailure&) {  // a device that has failed runs nothing any more
    return false;
  }
}

std::vector<Graph::Kept>& Graph::left_behind() {
  static std::vector<Kept>& kept = *new std::vector<Kept>;
  return kept;
}

// What is let go of goes after the lock: that may run Python code.
void Graph::sweep() noexcept {
  std::vector<Kept> over;
  const std::lock_guard lock(graphs_mutex);
  const auto first = std::partition(left_behind().begin(), left_behind().end(),
                                    [](const Kept& kept) { return kept.in_use(); });
  std::move(first, left_behind().end(), std::back_inserter(over));
  left_behind().erase(first, left_behind().end());
}

void Graph::drop() noexcept {
  const std::lock_guard turn(launching_);
  {
    const std::lock_guard lock(graphs_mutex);
    left_behind().push_back({std::move(launched_), std::exchange(exec_, {}),
                             std::exchange(communicators_, {}), std::exchange(held_, {})});
  }
  sweep();
}

void Graph::close() {
  {
    const std::lock_guard lock(graphs_mutex);
    if (state_ == State::kCapturing)
      throw std::invalid_argument("graph: it is being captured; leave its with block first");
    state_ = State::kClosed;
  }
  drop();
}

std::shared_ptr<const Graph::Exec> Graph::exec() const {
  const std::lock_guard lock(graphs_mutex);
  if (state_ != State::kReady) throw std::invalid_argument("graph: " + why_not());
  return exec_;
}

void Graph::launch(CUstream stream) const {
  const std::lock_guard turn(launching_);
  const std::shared_ptr<const Exec> running = exec();
  const DeviceScope scope(*library_, device_);
  if (!launched_) launched_ = std::make_shared<Event>(library_, device_, false);
  DRIVER_CHECK(*library_, GraphLaunch, (running->handle(), stream));
  launched_->record(stream);
}

void Graph::upload(CUstream stream) const {
  const std::shared_ptr<const Exec> ready = exec();
  const DeviceScope scope(*library_, device_);
  DRIVER_CHECK(*library_, GraphUpload, (ready->handle(), stream));
}

std::string Graph::why_not() const {
  switch (state_) {
    case State::kNew:
      return "nothing was captured; use it in a with statement first";
    case State::kCapturing:
      return "it is being captured; leave its with block first";
    case State::kFailed:
      return "an error ended its capture; make another one";
    case State::kBroken:
      return lost_ + " was closed, which it needs; capture it again with an open one";
    default:
      return "it is closed";
  }
}

std::string Graph::text() const {
  const std::lock_guard lock(graphs_mutex);
  switch (state_) {
    case State::kNew:
      return "new";
    case State::kCapturing:
      return "being captured";
    case State::kReady:
      return "of " + std::to_string(size_) + (size_ == 1 ? " node" : " nodes");
    case State::kFailed:
      return "failed";
    case State::kBroken:
      return "broken: " + lost_ + " was closed";
    default:
      return "closed";
  }
}

Graph* Graph::captured_into(const Library& library, cuuint64_t id) {
  for (Graph* graph : all_graphs())
    if (graph->state_ == State::kCapturing && graph->id_ == id && graph->library_.get() == &library)
      return graph;
  return nullptr;
}

void Graph::note(const std::shared_ptr<Communicator>& communicator, CUstream stream) {
  const Library& library = communicator->library();
  const std::optional<cuuint64_t> id = capture_id(library, stream);
  if (!id) return;
  const std::lock_guard lock(graphs_mutex);
  Graph* graph = captured_into(library, *id);
  if (graph && !graph->uses(*communicator)) graph->communicators_.push_back(communicator);
}

bool Graph::hold(const Library& library, CUstream stream, std::shared_ptr<void> object) {
  const std::optional<cuuint64_t> id = capture_id(library, stream);
  if (!id) return false;
  const std::lock_guard lock(graphs_mutex);
  Graph* graph = captured_into(library, *id);
  if (graph) graph->held_.push_back(std::move(object));
  return graph != nullptr;
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

bool Graph::uses(const Communicator& communicator) const {
  return std::any_of(communicators_.begin(), communicators_.end(),
                     [&](const auto& used) { return used.get() == &communicator; });
}

void Graph::let_go(const Communicator& communicator, bool forced) {
  std::vector<std::shared_ptr<const Exec>> freed;  // after the lock
  const std::lock_guard lock(graphs_mutex);
  for (Graph* graph : all_graphs())
    if (!forced && graph->state_ == State::kCapturing && graph->uses(communicator))
      throw std::invalid_argument(
          "communicator: a graph is capturing it; leave its with block first");
  for (Graph* graph : all_graphs()) {
    if (!graph->uses(communicator)) continue;
    if (graph->lost_.empty()) graph->lost_ = name_of(communicator);
    if (graph->state_ != State::kReady) continue;
    graph->state_ = State::kBroken;
    freed.push_back(std::move(graph->exec_));
  }
}

}  // namespace pynccl
