// Captures and graphs: fork and join, launches on several streams and from several threads,
// captures that other threads invalidate, graphs destroyed while they run. Everything runs without
// and with random delays (HOSTNCCL_DELAY_SEED).
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "stress.h"

namespace stress {
namespace {

void add_one(void* counter) { ++*static_cast<int64_t*>(counter); }

struct Streams {
  cudaStream_t first = new_stream();
  cudaStream_t second = new_stream();
  CUevent forked = nullptr;
  CUevent joined = nullptr;

  Streams() {
    OK(hostEventCreate(&forked, CU_EVENT_DISABLE_TIMING));
    OK(hostEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  ~Streams() {
    OK(hostStreamDestroy(first));
    OK(hostStreamDestroy(second));
    OK(hostEventDestroy(forked));
    OK(hostEventDestroy(joined));
  }

  void fork() const {
    OK(hostEventRecord(forked, first));
    OK(hostStreamWaitEvent(second, forked, 0));
  }
  void join() const {
    OK(hostEventRecord(joined, second));
    OK(hostStreamWaitEvent(first, joined, 0));
  }
};

CUgraphExec instantiate(CUgraph graph) {
  CUgraphExec exec = nullptr;
  OK(hostGraphInstantiateWithFlags(&exec, graph, 0));
  OK(hostGraphDestroy(graph));
  return exec;
}

// value = value * nranks + 1 on one branch, count = count + 1 on the other.
void replay() {
  with_communicators(3, [](int, ncclComm_t comm) {
    const Streams streams;
    int64_t value = 1;
    int64_t count = 0;
    int64_t copy = 0;
    OK(hostStreamBeginCapture(streams.first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    streams.fork();
    OK(ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, comm, streams.second));
    OK(hostLaunchHostFunc(streams.first, add_one, &count));
    streams.join();
    OK(hostLaunchHostFunc(streams.first, add_one, &value));
    OK(hostMemcpyAsync(reinterpret_cast<CUdeviceptr>(&copy), reinterpret_cast<CUdeviceptr>(&value),
                       sizeof copy, streams.first));
    CUgraph graph = nullptr;
    OK(hostStreamEndCapture(streams.first, &graph));
    size_t nodes = 0;
    OK(hostGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 4 && value == 1 && count == 0);
    const CUgraphExec exec = instantiate(graph);
    int64_t expected = 1;
    const cudaStream_t targets[] = {streams.first, streams.second, nullptr};
    for (int i = 0; i < 24; ++i) {  // launches of a graph are ordered, even across streams
      OK(hostGraphLaunch(exec, targets[i % 3]));
      expected = expected * 3 + 1;
    }
    OK(hostGraphLaunch(exec, streams.first));
    OK(hostGraphExecDestroy(exec));  // while it runs
    OK(hostStreamSynchronize(streams.first));
    CHECK(value == expected * 3 + 1 && copy == value && count == 25);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, hostGraphLaunch(exec, streams.first));
  });
}

// Several threads of each rank launch graphs of their own on one communicator.
void many_threads() {
  with_communicators(2, [](int, ncclComm_t comm) {
    in_threads(3, [&](int) {
      const Streams streams;
      int64_t value = 1;
      OK(hostStreamBeginCapture(streams.first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      OK(ncclAllReduce(&value, &value, 1, ncclInt64, ncclMax, comm, streams.first));
      CUgraph graph = nullptr;
      OK(hostStreamEndCapture(streams.first, &graph));
      const CUgraphExec exec = instantiate(graph);
      for (int i = 0; i < 20; ++i)
        OK(hostGraphLaunch(exec, i % 2 ? streams.second : streams.first));
      OK(hostStreamSynchronize(streams.first));
      OK(hostStreamSynchronize(streams.second));
      OK(hostGraphExecDestroy(exec));
      CHECK(value == 1);
    });
  });
}

// Several threads launch one graph. Its launches run sequentially.
void one_graph_in_many_threads() {
  const Streams streams;
  int64_t count = 0;  // not atomic: ThreadSanitizer reports launches that overlap
  OK(hostStreamBeginCapture(streams.first, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(hostLaunchHostFunc(streams.first, add_one, &count));
  streams.fork();
  OK(hostLaunchHostFunc(streams.second, add_one, &count));
  streams.join();
  CUgraph graph = nullptr;
  OK(hostStreamEndCapture(streams.first, &graph));
  const CUgraphExec exec = instantiate(graph);
  in_threads(4, [&](int thread) {
    const cudaStream_t own = thread == 0 ? nullptr : new_stream();
    for (int i = 0; i < 25; ++i) OK(hostGraphLaunch(exec, own));
    OK(hostStreamSynchronize(own));
    if (thread != 0) OK(hostStreamDestroy(own));
  });
  CHECK(count == 200);
  OK(hostGraphExecDestroy(exec));
}

// Events that each launch of a graph records while other threads query them.
void events_in_graphs() {
  const Streams streams;
  int64_t count = 0;
  CUevent began, ended;
  OK(hostEventCreate(&began, CU_EVENT_DEFAULT));
  OK(hostEventCreate(&ended, CU_EVENT_DEFAULT));
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         hostEventRecordWithFlags(began, streams.first, CU_EVENT_RECORD_EXTERNAL));
  EXPECT(CUDA_ERROR_INVALID_VALUE, hostEventRecordWithFlags(began, streams.first, 2));
  OK(hostEventRecordWithFlags(began, streams.first, 0));
  OK(hostStreamBeginCapture(streams.first, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(hostEventRecordWithFlags(began, streams.first, CU_EVENT_RECORD_EXTERNAL));
  OK(hostLaunchHostFunc(streams.first, add_one, &count));
  OK(hostEventRecordWithFlags(ended, streams.first, CU_EVENT_RECORD_EXTERNAL));
  CUgraph graph = nullptr;
  OK(hostStreamEndCapture(streams.first, &graph));
  const CUgraphExec exec = instantiate(graph);
  in_threads(2, [&](int thread) {
    for (int i = 0; i < 50; ++i) {
      if (thread == 1) {
        hostEventQuery(ended);
        continue;
      }
      OK(hostGraphLaunch(exec, streams.first));
      OK(hostStreamSynchronize(streams.first));
      float elapsed = -1;
      OK(hostEventElapsedTime(&elapsed, began, ended));
      CHECK(elapsed >= 0);
    }
  });
  CHECK(count == 50);
  OK(hostEventDestroy(began));  // the graph still refers to it
  OK(hostGraphLaunch(exec, streams.first));
  OK(hostStreamSynchronize(streams.first));
  CHECK(count == 51);
  OK(hostGraphExecDestroy(exec));
  OK(hostEventDestroy(ended));
}

// Other threads use, invalidate and join a capture. Errors are allowed, data races are not.
void invalidated_by_other_threads() {
  const Streams streams;
  std::atomic<bool> finished{false};
  in_threads(3, [&](int thread) {
    if (thread == 0) {
      for (int i = 0; i < 60; ++i) {
        OK(hostStreamBeginCapture(streams.first, CU_STREAM_CAPTURE_MODE_GLOBAL));
        hostEventRecord(streams.forked, streams.first);
        hostStreamWaitEvent(streams.second, streams.forked, 0);
        CUgraph graph = nullptr;
        if (hostStreamEndCapture(streams.first, &graph) == CUDA_SUCCESS)
          OK(hostGraphDestroy(graph));
      }
      finished = true;
    }
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (thread == 2) OK(hostThreadExchangeStreamCaptureMode(&mode));
    while (!finished) {
      CUstreamCaptureStatus status;
      OK(hostStreamIsCapturing(streams.second, &status));
      if (thread == 1) hostStreamQuery(streams.second);
      hostEventQuery(streams.forked);
      hostStreamWaitEvent(streams.second, streams.joined, 0);
      hostEventRecord(streams.joined, streams.second);
    }
    if (thread == 2) OK(hostThreadExchangeStreamCaptureMode(&mode));
  });
  OK(hostStreamSynchronize(streams.first));
  OK(hostStreamSynchronize(streams.second));
}

void destroyed_communicator() {
  const Streams streams;
  CUgraphExec exec = nullptr;
  int32_t value = 1;
  with_communicators(1, [&](int, ncclComm_t comm) {
    OK(hostStreamBeginCapture(streams.first, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, streams.first));
    CUgraph graph = nullptr;
    OK(hostStreamEndCapture(streams.first, &graph));
    exec = instantiate(graph);
    OK(hostGraphLaunch(exec, streams.first));
    OK(hostStreamSynchronize(streams.first));
  });
  EXPECT(CUDA_ERROR_ILLEGAL_STATE, hostGraphLaunch(exec, streams.first));
  CHECK_LAST_ERROR("rank 0 of 1, which was destroyed");
  OK(hostGraphExecDestroy(exec));
}

// The origin stream is destroyed before its capture has ended.
void destroyed_origin_stream() {
  const cudaStream_t stream = new_stream();
  const Streams streams;
  OK(hostStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(hostEventRecord(streams.forked, stream));
  OK(hostStreamWaitEvent(streams.second, streams.forked, 0));
  OK(hostStreamDestroy(stream));
  CUstreamCaptureStatus status;
  OK(hostStreamIsCapturing(streams.second, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  OK(hostStreamSynchronize(streams.second));
}

}  // namespace

void graphs() {
  for (const char* seed : {"0", "7"}) {
    setenv("HOSTNCCL_DELAY_SEED", seed, 1);
    replay();
    many_threads();
    one_graph_in_many_threads();
    events_in_graphs();
    invalidated_by_other_threads();
    destroyed_communicator();
    destroyed_origin_stream();
  }
  setenv("HOSTNCCL_DELAY_SEED", "0", 1);
  OK(hostStreamDestroy(new_stream()));  // a new stream reads the seed
}

}  // namespace stress
