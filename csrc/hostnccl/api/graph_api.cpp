// The driver API's calls on captures and graphs.
#include "hostnccl/api/device_api.h"
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
  return checked([=] {
    require_mode(*out(mode));
    *mode = Capture::exchange_mode(*mode);
  });
}

CUresult hostStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return checked([=] {
    require_mode(mode);
    Capture::begin(find(stream), mode);
  });
}

CUresult hostStreamEndCapture(CUstream stream, CUgraph* graph) {
  return checked([=] {
    *out(graph) = nullptr;
    *graph = reinterpret_cast<CUgraph>(graphs().open(Capture::end(find(stream))).slot());
  });
}

CUresult hostStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return checked([=] { *out(status) = Capture::info(find(stream)).status; });
}

CUresult hostStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                  CUgraph* graph, const CUgraphNode** dependencies,
                                  size_t* numDependencies) {
  return checked([=] {
    const bool edits = graph != nullptr || dependencies != nullptr || numDependencies != nullptr;
    require(!edits, CUDA_ERROR_NOT_SUPPORTED);
    const Capture::Info info = Capture::info(find(stream));
    *out(status) = info.status;
    if (id != nullptr) *id = info.id;
  });
}

CUresult hostGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* numNodes) {
  return checked([=] {
    const Ref<Graph> counted = found(graphs(), graph);
    require(nodes == nullptr, CUDA_ERROR_NOT_SUPPORTED);  // nodes have no handles
    *out(numNodes) = counted->nodes().size();
  });
}

CUresult hostGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return checked([=] {
    out(exec);
    require(flags == 0, CUDA_ERROR_INVALID_VALUE);
    auto made = std::make_unique<GraphExec>(found(graphs(), graph));
    *exec = reinterpret_cast<CUgraphExec>(graph_execs().open(std::move(made)).slot());
  });
}

// The graph is where it runs already.
CUresult hostGraphUpload(CUgraphExec exec, CUstream stream) {
  return checked([=] {
    Capture::refuse(find(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    found(graph_execs(), exec);
  });
}

CUresult hostGraphLaunch(CUgraphExec exec, CUstream stream) {
  return checked([=] {
    const Ref<Stream> queue = find(stream);
    Capture::refuse(queue, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    found(graph_execs(), exec)->launch(queue);
  });
}

CUresult hostGraphExecDestroy(CUgraphExec exec) {
  return checked([=] {
    const Ref<GraphExec> closed = graph_execs().find(exec);
    require(closed && graph_execs().close(closed), CUDA_ERROR_INVALID_HANDLE);
  });
}

CUresult hostGraphDestroy(CUgraph graph) {
  return checked([=] {
    const Ref<Graph> closed = graphs().find(graph);
    require(closed && graphs().close(closed), CUDA_ERROR_INVALID_HANDLE);
  });
}

}  // extern "C"

}  // namespace pynccl::abi
