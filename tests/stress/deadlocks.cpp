// Deadlocks: ranks that wait for each other over two communicators, messages and streams all get an
// error. Ranks that only pause do not.
#include "stress.h"

namespace stress {
namespace {

constexpr int kRanks = 3;

void expect_deadlock(ncclResult_t result) {
  CHECK(result == ncclInvalidUsage);
  CHECK_LAST_ERROR("deadlock: ");
}

// Each rank has two communicators and uses them in its own order.
void orders() {
  const ncclUniqueId ids[2] = {new_id(), new_id()};
  in_threads(kRanks, [&ids](int rank) {
    ncclComm_t comms[2];
    for (int i = 0; i < 2; ++i) OK(ncclCommInitRank(&comms[i], kRanks, ids[i], rank));
    float value = 1;
    for (ncclComm_t comm : comms)
      OK(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr));
    expect_deadlock(
        ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comms[rank != 0], nullptr));
    for (ncclComm_t comm : comms) OK(ncclCommAbort(comm));
  });
}

void ring_of_receives() {
  with_communicators(
      kRanks,
      [](int rank, ncclComm_t comm) {
        float value = 0;
        expect_deadlock(ncclRecv(&value, 1, ncclFloat32, (rank + 1) % kRanks, comm, nullptr));
      },
      ncclInvalidUsage);
}

void on_streams() {
  with_communicators(
      kRanks,
      [](int rank, ncclComm_t comm) {
        float value = 0;
        cudaStream_t stream = new_stream();
        OK(ncclRecv(&value, 1, ncclFloat32, (rank + 1) % kRanks, comm, stream));
        CHECK(hostStreamSynchronize(stream) != CUDA_SUCCESS);
        OK(hostStreamDestroy(stream));
      },
      ncclInvalidUsage);
}

// All threads sleep and pause, none for long.
void pauses() {
  with_communicators(kRanks, [](int rank, ncclComm_t comm) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int round = 0; round < 20; ++round) {
      pause(int(random() % 200));
      float value = 1;
      OK(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr));
      CHECK(value == kRanks);
    }
  });
}

}  // namespace

void deadlocks() {
  orders();
  ring_of_receives();
  on_streams();
  pauses();
}

}  // namespace stress
