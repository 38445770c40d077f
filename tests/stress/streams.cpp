// Streams and events: order within a stream, between streams, and of one communicator's operations
// across streams; groups over several communicators and streams.
#include <atomic>
#include <cstdint>

#include "stress.h"

namespace stress {
namespace {

void add_one(void* counter) { ++*static_cast<int32_t*>(counter); }

void order_of_one_communicator() {
  with_communicators(3, [](int, ncclComm_t comm) {
    const cudaStream_t streams[] = {new_stream(), new_stream(), nullptr};
    int64_t value = 1;
    int64_t expected = 1;
    for (int i = 0; i < 38; ++i) {  // each needs the previous result, from another stream
      OK(ncclAllReduce(&value, &value, 1, ncclInt64, ncclSum, comm, streams[i % 3]));
      expected *= 3;
    }
    OK(hostStreamSynchronize(streams[0]));
    OK(hostStreamSynchronize(streams[1]));
    CHECK(value == expected);
    OK(hostStreamDestroy(streams[0]));
    OK(hostStreamDestroy(streams[1]));
  });
}

void events() {
  CUevent first;
  CUevent second;
  OK(hostEventCreate(&first, CU_EVENT_DEFAULT));
  OK(hostEventCreate(&second, CU_EVENT_DEFAULT));
  const cudaStream_t one = new_stream();
  const cudaStream_t two = new_stream();
  OK(hostEventQuery(first));
  OK(hostStreamWaitEvent(one, first, 0));  // never recorded: nothing to wait for
  int32_t counter = 0;
  for (int i = 0; i < 200; ++i) {
    OK(hostLaunchHostFunc(one, add_one, &counter));
    OK(hostEventRecord(first, one));
    OK(hostStreamWaitEvent(two, first, 0));
    OK(hostLaunchHostFunc(two, add_one, &counter));
    OK(hostEventRecord(second, two));
    OK(hostStreamWaitEvent(one, second, 0));
  }
  OK(hostEventSynchronize(second));
  CHECK(counter == 400);
  OK(hostEventSynchronize(first));
  float elapsed = -1;
  OK(hostEventElapsedTime(&elapsed, first, second));
  CHECK(elapsed >= 0);
  int32_t copy = 0;
  OK(hostMemcpyAsync(reinterpret_cast<CUdeviceptr>(&copy), reinterpret_cast<CUdeviceptr>(&counter),
                     sizeof copy, two));
  OK(hostStreamDestroy(one));
  OK(hostStreamSynchronize(two));
  OK(hostStreamQuery(two));
  CHECK(copy == 400);
  OK(hostStreamDestroy(two));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, hostStreamSynchronize(two));
  OK(hostEventDestroy(first));
  OK(hostEventDestroy(second));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, hostEventRecord(first, nullptr));
  CUevent untimed;
  OK(hostEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  OK(hostEventRecord(untimed, nullptr));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, hostEventElapsedTime(&elapsed, untimed, untimed));
  OK(hostEventDestroy(untimed));
}

// Two communicators of two ranks each, all four ranks in this thread, on random streams.
void groups_on_streams() {
  ncclComm_t left[2];
  ncclComm_t right[2];
  OK(ncclCommInitAll(left, 2, nullptr));
  OK(ncclCommInitAll(right, 2, nullptr));
  const cudaStream_t streams[] = {new_stream(), new_stream(), new_stream(), nullptr};
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    int32_t values[4] = {1, 2, 30, 40};
    std::vector<int32_t> sent(20000, round);
    std::vector<int32_t> received(20000);
    const auto stream = [&] { return streams[random() % 4]; };
    OK(ncclGroupStart());
    for (int rank = 0; rank < 2; ++rank) {
      int32_t* a = &values[rank];
      int32_t* b = &values[2 + rank];
      OK(ncclAllReduce(a, a, 1, ncclInt32, ncclSum, left[rank], stream()));
      OK(ncclAllReduce(b, b, 1, ncclInt32, ncclSum, right[rank], stream()));
    }
    OK(ncclRecv(received.data(), received.size(), ncclInt32, 1, left[0], stream()));
    OK(ncclSend(sent.data(), sent.size(), ncclInt32, 0, left[1], stream()));
    OK(ncclGroupEnd());
    for (const cudaStream_t used : streams) OK(hostStreamSynchronize(used));
    CHECK(values[0] == 3 && values[1] == 3 && values[2] == 70 && values[3] == 70);
    CHECK(received == sent);
  }
  for (int rank = 0; rank < 2; ++rank) {
    OK(ncclCommDestroy(left[rank]));
    OK(ncclCommDestroy(right[rank]));
    OK(hostStreamDestroy(streams[rank]));
  }
  OK(hostStreamDestroy(streams[2]));
}

// Several threads use one communicator. Their order is undefined, so all calls are equal.
void many_threads_on_one() {
  with_communicators(2, [](int, ncclComm_t comm) {
    const cudaStream_t stream = new_stream();
    in_threads(3, [&](int thread) {
      for (int i = 0; i < 50; ++i) {
        int32_t value = 1;
        OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm,
                         thread == 0 ? stream : nullptr));
        if (thread == 0) OK(hostStreamSynchronize(stream));
        CHECK(value == 2);
      }
    });
    OK(hostStreamDestroy(stream));
  });
}

// A stream is destroyed while work is queued. The work still runs.
void destroy_with_work_queued() {
  std::vector<int32_t> values(2 * 5000, 1);
  with_communicators(2, [&](int rank, ncclComm_t comm) {
    const cudaStream_t stream = new_stream();
    int32_t* data = values.data() + rank * 5000;
    for (int i = 0; i < 10; ++i) {
      OK(ncclAllReduce(data, data, 5000, ncclInt32, ncclSum, comm, stream));
    }
    OK(hostStreamDestroy(stream));
  });
  for (const int32_t value : values) CHECK(value == 1024);
}

// An operation that fails on a stream is reported by every stream of its group and by its
// communicator.
void failure_on_a_stream() {
  with_communicators(2, [](int rank, ncclComm_t comm) {
    const cudaStream_t one = new_stream();
    const cudaStream_t two = new_stream();
    int32_t value[4] = {};
    OK(ncclGroupStart());
    OK(ncclAllReduce(value, value, size_t(1 + rank), ncclInt32, ncclSum, comm, one));
    OK(ncclAllReduce(value + 2, value + 2, 1, ncclInt32, ncclSum, comm, two));
    OK(ncclGroupEnd());
    EXPECT(CUDA_ERROR_UNKNOWN, hostStreamSynchronize(one));
    EXPECT(CUDA_ERROR_UNKNOWN, hostStreamSynchronize(two));
    OK(hostStreamSynchronize(one));
    CHECK(state_of(comm) == ncclInvalidUsage);
    CHECK(std::string(ncclGetLastError(comm)).find("count=2") != std::string::npos);
    EXPECT(ncclInvalidUsage, ncclAllReduce(value, value, 1, ncclInt32, ncclSum, comm, one));
    OK(hostStreamDestroy(one));
    OK(hostStreamDestroy(two));
  });
}

}  // namespace

void streams() {
  order_of_one_communicator();
  events();
  groups_on_streams();
  many_threads_on_one();
  destroy_with_work_queued();
  failure_on_a_stream();
}

}  // namespace stress
