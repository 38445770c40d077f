// Captures and graphs.
#include <map>

#include "driver/driver.h"
#include "driver/graph.h"

namespace cuda_double {
namespace {

using Holds = std::vector<Hold>;

std::mutex mutex;

// By the capture's id, or by the engine's handle of a graph or an executable.
template <class Key>
std::map<Key, Holds>& holds() {
  static auto& all = *new std::map<Key, Holds>;
  return all;
}

template <class Key>
Holds take_holds(Key key) {
  const std::lock_guard lock(mutex);
  const auto found = holds<Key>().find(key);
  if (found == holds<Key>().end()) return {};
  Holds taken = std::move(found->second);
  holds<Key>().erase(found);
  return taken;
}

template <class Key>
Holds get_holds(Key key) {
  const std::lock_guard lock(mutex);
  const auto found = holds<Key>().find(key);
  return found == holds<Key>().end() ? Holds() : found->second;
}

template <class Key>
void set_holds(Key key, Holds kept) {
  const std::lock_guard lock(mutex);
  if (!kept.empty()) holds<Key>()[key] = std::move(kept);
}

struct DestroyEvent {
  void operator()(CUevent event) const { engine().EventDestroy(event); }
};
using EngineEvent = std::unique_ptr<CUevent_st, DestroyEvent>;
using Joins = std::map<CUstream, EngineEvent>;  // by the engine's stream, after its last operation

// By the capture's id.
std::map<cuuint64_t, Joins>& joins() {
  static auto& all = *new std::map<cuuint64_t, Joins>;
  return all;
}

Joins take_joins(cuuint64_t id) {
  const std::lock_guard lock(mutex);
  const auto taken = joins().extract(id);
  return taken ? std::move(taken.mapped()) : Joins();
}

cuuint64_t capture_id(const Stream& stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  engine().StreamGetCaptureInfo(stream.queue(), &status, &id, nullptr, nullptr, nullptr);
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : id;
}

// What CUDA calls a potentially unsafe call: an error that invalidates captures, by the modes of
// this thread and of the captures. The query of an event is one.
CUresult check_unsafe_call() {
  CUevent event = nullptr;
  engine().EventCreate(&event, CU_EVENT_DISABLE_TIMING);
  return engine().EventQuery(EngineEvent(event).get());
}

}  // namespace

bool hold_in_capture(const Stream& stream, Hold hold) {
  const cuuint64_t id = capture_id(stream);
  if (id == 0) return false;
  const std::lock_guard lock(mutex);
  holds<cuuint64_t>()[id].push_back(std::move(hold));
  return true;
}

void need_no_join(const Stream& stream) {
  const cuuint64_t id = capture_id(stream);
  if (id == 0) return;
  CUevent event = nullptr;
  engine().EventCreate(&event, CU_EVENT_DISABLE_TIMING);
  EngineEvent after(event);
  if (engine().EventRecord(event, stream.queue()) != CUDA_SUCCESS) return;  // it is invalidated
  const std::lock_guard lock(mutex);
  joins()[id][stream.queue()] = std::move(after);
}

namespace driver {

CUresult ThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return engine().ThreadExchangeStreamCaptureMode(mode);
}

CUresult StreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  const auto [stream, result] = find_stream(handle);
  if (!stream) return result;
  if (stream->kind() == Stream::Kind::Legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return engine().StreamBeginCapture(stream->queue(), mode);
}

CUresult StreamEndCapture(CUstream handle, CUgraph* graph) {
  const auto [stream, result] = find_stream(handle);
  if (!stream) return result;
  const cuuint64_t id = capture_id(*stream);
  Holds kept = take_holds(id);
  for (const auto& [queue, after] : take_joins(id))
    engine().StreamWaitEvent(stream->queue(), after.get(), 0);
  const CUresult ended = engine().StreamEndCapture(stream->queue(), graph);
  if (ended == CUDA_SUCCESS) set_holds(*graph, std::move(kept));
  return ended;
}

CUresult StreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return StreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr);
}

// Querying the legacy stream is an error while a blocking stream is captured.
CUresult StreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                              CUgraph* graph, const CUgraphNode** dependencies,
                              size_t* numDependencies) {
  const auto [stream, result] = find_stream(handle);
  if (!stream) return result;
  if (stream->kind() == Stream::Kind::Legacy) {
    if (const CUresult refused = stream->before_work(); refused != CUDA_SUCCESS) return refused;
  }
  return engine().StreamGetCaptureInfo(stream->queue(), status, id, graph, dependencies,
                                       numDependencies);
}

CUresult GraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* numNodes) {
  return engine().GraphGetNodes(graph, nodes, numNodes);
}

CUresult GraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult made = engine().GraphInstantiateWithFlags(exec, graph, flags);
  if (made == CUDA_SUCCESS) set_holds(*exec, get_holds(graph));
  return made;
}

CUresult GraphLaunch(CUgraphExec exec, CUstream handle) {
  return on_stream(handle, [&](Stream& s) {
    const Holds kept = get_holds(exec);
    if (kept.empty()) return engine().GraphLaunch(exec, s.queue());
    const auto end = [kept] {
      for (const Hold& hold : kept) hold->after_launch();
    };
    for (const Hold& hold : kept) hold->before_launch();
    const CUresult launched = engine().GraphLaunch(exec, s.queue());
    if (launched == CUDA_SUCCESS)
      launch(s, end);
    else
      end();
    return launched;
  });
}

// A potentially unsafe call: the destruction of an executable invalidates the captures of the
// thread. It is assumed that a refused call destroys nothing.
CUresult GraphExecDestroy(CUgraphExec exec) {
  if (const CUresult refused = check_unsafe_call(); refused != CUDA_SUCCESS) return refused;
  const Holds released = take_holds(exec);
  return engine().GraphExecDestroy(exec);
}

CUresult GraphDestroy(CUgraph graph) {
  const Holds released = take_holds(graph);
  return engine().GraphDestroy(graph);
}

}  // namespace driver
}  // namespace cuda_double
