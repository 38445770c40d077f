// The life cycle of communicators: split, finalize, abort while blocked, non-blocking init, many
// communicators, and invalid handles.
#include <atomic>
#include <cstdint>
#include <thread>

#include "stress.h"

namespace stress {
namespace {

void split() {
  with_communicators(5, [](int rank, ncclComm_t comm) {
    ncclComm_t half;
    OK(ncclCommSplit(comm, rank % 2, -rank, &half, nullptr));
    int count;
    int new_rank;
    OK(ncclCommCount(half, &count));
    OK(ncclCommUserRank(half, &new_rank));
    CHECK(count == (rank % 2 == 0 ? 3 : 2) && new_rank == (count - 1) - rank / 2);
    CHECK(sum_over(half, rank) == (rank % 2 == 0 ? 6 : 4));
    ncclComm_t none;
    OK(ncclCommSplit(comm, rank == 0 ? kSplitNoColor : 7, 0, &none, nullptr));
    CHECK((none == nullptr) == (rank == 0));
    if (rank != 0) CHECK(sum_over(none, 1) == 4);
    ncclConfig_t config = non_blocking();
    ncclComm_t pending;
    OK(ncclCommSplit(comm, 0, 0, &pending, &config));  // blocking, like its parent
    CHECK(sum_over(comm, 1) == 5);                     // ordered after the split
    CHECK(state_of(pending) == ncclSuccess);
    CHECK(sum_over(pending, 2) == 10);
    OK(ncclCommDestroy(pending));
    OK(ncclCommDestroy(half));
    OK(ncclCommDestroy(none));
  });
  // All ranks in one thread: the splits of a group progress together.
  ncclComm_t comms[3];
  ncclComm_t parts[3];
  OK(ncclCommInitAll(comms, 3, nullptr));
  OK(ncclGroupStart());
  for (int rank = 0; rank < 3; ++rank) OK(ncclCommSplit(comms[rank], 0, 0, &parts[rank], nullptr));
  OK(ncclGroupEnd());
  for (int rank = 0; rank < 3; ++rank) {
    OK(ncclCommDestroy(parts[rank]));
    OK(ncclCommDestroy(comms[rank]));
  }
}

void finalize() {
  with_communicators(2, [](int, ncclComm_t comm) {
    CHECK(sum_over(comm, 1) == 2);
    OK(ncclCommFinalize(comm));
    int32_t value = 0;
    EXPECT(ncclInvalidUsage, ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr));
  });
}

void non_blocking_init() {
  const ncclUniqueId id = new_id();
  in_threads(3, [&](int rank) {
    ncclConfig_t config = non_blocking();
    ncclComm_t comm;
    if (rank == 2) pause(50);
    EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, 3, id, rank, &config));
    if (rank == 0) CHECK(std::string(ncclGetLastError(comm)).size() > 0);
    CHECK(state_of(comm) == ncclSuccess);
    CHECK(sum_over(comm, rank) == 3);
    EXPECT(ncclInProgress, ncclCommFinalize(comm));
    CHECK(state_of(comm) == ncclSuccess);
    OK(ncclCommDestroy(comm));
  });
  // Abort ends an initialization whose other rank is missing.
  ncclConfig_t config = non_blocking();
  ncclComm_t lonely;
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&lonely, 2, new_id(), 0, &config));
  pause(20);
  CHECK(std::string(ncclGetLastError(lonely)).find("missing: 1") != std::string::npos);
  OK(ncclCommAbort(lonely));
}

// Rank 0 blocks in the calling thread or on a stream, and another thread aborts it. Rank 1 then
// waits for rank 0.
void abort_blocked(size_t count, bool queued) {
  const ncclUniqueId id = new_id();
  std::atomic<bool> aborted{false};
  in_threads(2, [&](int rank) {
    ncclComm_t comm;
    OK(ncclCommInitRank(&comm, 2, id, rank));
    std::vector<int32_t> data(count, 1);
    if (rank == 0) {
      const cudaStream_t stream = queued ? new_stream() : nullptr;
      std::thread aborter([&] {
        pause(30);
        OK(ncclCommAbort(comm));
        aborted = true;
      });
      const ncclResult_t result =
          ncclAllReduce(data.data(), data.data(), count, ncclInt32, ncclSum, comm, stream);
      aborter.join();
      CHECK((result == ncclSuccess) == queued);
      if (queued) {
        EXPECT(CUDA_ERROR_UNKNOWN, hostStreamSynchronize(stream));
        OK(hostStreamDestroy(stream));
      }
    } else {
      while (!aborted) pause(1);
      EXPECT(ncclRemoteError,
             ncclAllReduce(data.data(), data.data(), count, ncclInt32, ncclSum, comm, nullptr));
      CHECK_LAST_ERROR("rank 0");
      CHECK_LAST_ERROR("abort");
      CHECK(state_of(comm) == ncclRemoteError);
      EXPECT(ncclRemoteError, ncclCommDestroy(comm));
    }
  });
}

// One of three ranks aborts during large all-reduces: its buffers are freed while others read them.
void abort_during_reads() {
  const ncclUniqueId id = new_id();
  in_threads(3, [&](int rank) {
    ncclComm_t comm;
    OK(ncclCommInitRank(&comm, 3, id, rank));
    std::thread aborter([&] {
      if (rank != 1) return;
      pause(20);
      OK(ncclCommAbort(comm));
    });
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess) {
      std::vector<double> data(200000, 1.0);
      result =
          ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat64, ncclSum, comm, nullptr);
    }
    aborter.join();
    if (rank != 1) {
      CHECK(result == ncclRemoteError);
      EXPECT(ncclRemoteError, ncclCommDestroy(comm));
    }
  });
}

// Many communicators are created and destroyed at once; one of them is large.
void many_communicators() {
  in_threads(4, [](int) {
    for (int times = 0; times < 5; ++times) {
      with_communicators(3, [](int rank, ncclComm_t comm) { CHECK(sum_over(comm, rank) == 3); });
    }
  });
  with_communicators(40, [](int, ncclComm_t comm) { CHECK(sum_over(comm, 1) == 40); });
}

void abort_a_group() {
  ncclComm_t comms[2];
  OK(ncclCommInitAll(comms, 2, nullptr));
  std::thread aborter([&] {
    pause(20);
    OK(ncclCommAbort(comms[0]));
  });
  std::vector<int32_t> data(40000);
  OK(ncclGroupStart());
  OK(ncclRecv(data.data(), data.size(), ncclInt32, 1, comms[0], nullptr));
  OK(ncclSend(data.data(), 1, ncclInt32, 1, comms[0], nullptr));
  OK(ncclRecv(data.data() + 5, 1, ncclInt32, 0, comms[1], nullptr));
  OK(ncclRecv(data.data() + 9, 1, ncclInt32, 0, comms[1], nullptr));
  CHECK(ncclGroupEnd() != ncclSuccess);
  aborter.join();
  CHECK(state_of(comms[1]) == ncclRemoteError);
  EXPECT(ncclRemoteError, ncclCommDestroy(comms[1]));
}

void invalid_handles() {
  int32_t value = 0;
  const auto try_comm = [&](uintptr_t handle) {
    EXPECT(ncclInvalidArgument, ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum,
                                              reinterpret_cast<ncclComm_t>(handle), nullptr));
  };
  for (const uintptr_t handle : {uintptr_t{0}, uintptr_t{8}, uintptr_t{0x5555555500}}) {
    try_comm(handle);
  }
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, 1, new_id(), 0));
  try_comm(reinterpret_cast<uintptr_t>(comm) + 8);
  try_comm(reinterpret_cast<uintptr_t>(comm) + 64);
  OK(ncclCommDestroy(comm));
  try_comm(reinterpret_cast<uintptr_t>(comm));
  EXPECT(ncclInvalidArgument, ncclCommDestroy(comm));
  void* memory;
  OK(ncclMemAlloc(&memory, 1000));
  OK(ncclMemFree(memory));
  EXPECT(ncclInvalidArgument, ncclMemFree(memory));
}

}  // namespace

void lifecycle() {
  split();
  finalize();
  non_blocking_init();
  for (const size_t count : {size_t{1}, size_t{100000}}) {
    abort_blocked(count, false);
    abort_blocked(count, true);
  }
  for (int times = 0; times < 20; ++times) abort_during_reads();
  many_communicators();
  abort_a_group();
  invalid_handles();
}

}  // namespace stress
