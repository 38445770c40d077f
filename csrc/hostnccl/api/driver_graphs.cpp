// The driver API's functions for stream capture and graphs.
#include "hostnccl/api/driver_api.h"
#include "hostnccl/streams/graph_exec.h"

using namespace hostnccl;

namespace pynccl::abi {
namespace {

void require_mode(CUstreamCaptureMode mode) {
  require(mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
}

}  // namespace

extern "C" {

CUresult hostThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return driver_guarded([=] {
    require_mode(*non_null(mode));
    *mode = Capture::exchange_thread_mode(*mode);
  });
}

CUresult hostStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return driver_guarded([=] {
    require_mode(mode);
    Capture::begin(stream_of(stream), mode);
  });
}

CUresult hostStreamEndCapture(CUstream stream, CUgraph* graph) {
  return driver_guarded([=] {
    *non_null(graph) = nullptr;
    *graph = open_handle<CUgraph>(Capture::end(stream_of(stream)));
  });
}

CUresult hostStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return driver_guarded([=] { *non_null(status) = Capture::info(stream_of(stream)).status; });
}

CUresult hostStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                  CUgraph* graph, const CUgraphNode** dependencies,
                                  size_t* numDependencies) {
  return driver_guarded([=] {
    const bool asks_for_nodes =
        graph != nullptr || dependencies != nullptr || numDependencies != nullptr;
    require(!asks_for_nodes, CUDA_ERROR_NOT_SUPPORTED);
    const Capture::Info info = Capture::info(stream_of(stream));
    *non_null(status) = info.status;
    if (id != nullptr) *id = info.id;
  });
}

CUresult hostGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* numNodes) {
  return driver_guarded([=] {
    const Ref<Graph> target = object_of<Graph>(graph);
    require(nodes == nullptr, CUDA_ERROR_NOT_SUPPORTED);  // nodes have no handles
    *non_null(numNodes) = target->nodes().size();
  });
}

CUresult hostGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return driver_guarded([=] {
    non_null(exec);
    require(flags == 0, CUDA_ERROR_INVALID_VALUE);
    *exec = open_handle<CUgraphExec>(std::make_unique<GraphExec>(object_of<Graph>(graph)));
  });
}

// Does nothing: there is no other memory to upload a graph to.
CUresult hostGraphUpload(CUgraphExec exec, CUstream stream) {
  return driver_guarded([=] {
    Capture::check_not_capturing(stream_of(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    object_of<GraphExec>(exec);
  });
}

CUresult hostGraphLaunch(CUgraphExec exec, CUstream stream) {
  return driver_guarded([=] {
    const Ref<Stream> target = stream_of(stream);
    Capture::check_not_capturing(target, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    object_of<GraphExec>(exec)->launch(target);
  });
}

CUresult hostGraphExecDestroy(CUgraphExec exec) {
  return driver_guarded([=] { close_handle<GraphExec>(exec); });
}

CUresult hostGraphDestroy(CUgraph graph) {
  return driver_guarded([=] { close_handle<Graph>(graph); });
}

}  // extern "C"

}  // namespace pynccl::abi
