// Deriving communicators (split, shrink, grow), revoking and suspending them while operations run.
#include <atomic>
#include <cstdint>
#include <thread>

#include "abi/constants.h"
#include "stress.h"

namespace stress {
namespace {

// Calls large all-reduces, each with new buffers, until one fails. Returns its result.
ncclResult_t reduce_until_error(ncclComm_t comm, cudaStream_t stream) {
  for (;;) {
    std::vector<double> data(200000, 1.0);
    ncclResult_t result =
        ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat64, ncclSum, comm, stream);
    if (hostStreamSynchronize(stream) != CUDA_SUCCESS && result == ncclSuccess) {
      OK(ncclCommGetAsyncError(comm, &result));
      if (result == ncclSuccess) result = ncclInvalidUsage;  // revoked and idle
    }
    if (result != ncclSuccess) return result;
  }
}

// One rank revokes during operations, then the others do. The communicator can still be split.
void revoke_during_operations(bool queued) {
  with_communicators(3, [&](int rank, ncclComm_t comm) {
    const cudaStream_t stream = queued ? new_stream() : nullptr;
    std::thread revoker([&] {
      if (rank != 1) return;
      pause(5);
      OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    });
    const ncclResult_t result = reduce_until_error(comm, stream);
    revoker.join();
    CHECK(result == (rank == 1 ? ncclInvalidUsage : ncclRemoteError));
    if (rank == 1) {
      EXPECT(ncclInvalidArgument, ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    } else {
      OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    }
    CHECK(state_of(comm) == ncclSuccess);
    int32_t value = 0;
    EXPECT(ncclInvalidUsage, ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr));
    ncclConfig_t config = non_blocking();
    ncclComm_t children[3];
    for (ncclComm_t& child : children) {
      OK(ncclCommSplit(comm, 0, -rank, &child, &config));  // blocking, like its parent
    }
    for (const ncclComm_t child : children) {
      CHECK(state_of(child) == ncclSuccess);
      CHECK(sum_over(child, rank) == 3);
      OK(ncclCommDestroy(child));
    }
    if (queued) OK(hostStreamDestroy(stream));
  });
}

// All ranks revoke at about the same time.
void revoke_together() {
  with_communicators(4, [](int rank, ncclComm_t comm) {
    std::thread revoker([&] {
      pause(3);
      OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    });
    const ncclResult_t result = reduce_until_error(comm, nullptr);
    CHECK(result == ncclInvalidUsage || result == ncclRemoteError);
    revoker.join();
    ncclComm_t child;
    OK(ncclCommSplit(comm, 0, 0, &child, nullptr));
    CHECK(sum_over(child, rank) == 6);
    OK(ncclCommDestroy(child));
  });
}

// A rank aborts during operations. The others shrink when they get the error.
void shrink_with_abort() {
  const ncclUniqueId id = new_id();
  in_threads(4, [&](int rank) {
    ncclComm_t comm;
    OK(ncclCommInitRank(&comm, 4, id, rank));
    std::thread leaver([&] {
      if (rank != 2) return;
      pause(5);
      OK(ncclCommAbort(comm));
    });
    const ncclResult_t result = reduce_until_error(comm, nullptr);
    leaver.join();
    if (rank == 2) return;
    CHECK(result == ncclRemoteError || result == ncclInvalidUsage);
    int excluded[] = {2};
    ncclComm_t child;
    OK(ncclCommShrink(comm, excluded, 1, &child, nullptr, NCCL_SHRINK_ABORT));
    CHECK(sum_over(child, rank) == 4);
    int child_rank;
    OK(ncclCommUserRank(child, &child_rank));
    CHECK(child_rank == (rank == 3 ? 2 : rank));
    OK(ncclCommDestroy(comm));
    OK(ncclCommDestroy(child));
  });
}

void shrink_and_grow() {
  ncclUniqueId id{};
  std::atomic<bool> invited{false};
  with_communicators(4, [&](int rank, ncclComm_t comm) {
    ncclComm_t grown;
    if (rank != 3) {
      int excluded[] = {3};
      ncclComm_t child;
      OK(ncclCommShrink(comm, excluded, 1, &child, nullptr, NCCL_SHRINK_DEFAULT));
      CHECK(sum_over(child, rank) == 3);
      if (rank == 1) {
        OK(ncclCommGetUniqueId(child, &id));
        invited = true;
      }
      OK(ncclCommGrow(child, 4, rank == 1 ? &id : nullptr, -1, &grown, nullptr));
      OK(ncclCommDestroy(child));
    } else {
      while (!invited) pause(1);
      OK(ncclCommGrow(nullptr, 4, &id, 3, &grown, nullptr));
    }
    CHECK(sum_over(grown, rank) == 6);
    CHECK(sum_over(comm, rank) == 6);
    OK(ncclCommDestroy(grown));
  });
}

uint64_t stat(ncclComm_t comm, ncclCommMemStat_t which) {
  uint64_t value = 0;
  OK(ncclCommMemStats(comm, which, &value));
  return value;
}

// Operations on streams and messages before each suspension, while another thread reads memory
// statistics.
void suspend_and_resume(bool blocking) {
  const ncclUniqueId id = new_id();
  in_threads(3, [&](int rank) {
    ncclConfig_t config;
    config.blocking = blocking;
    ncclComm_t comm;
    CHECK(ncclCommInitRankConfig(&comm, 3, id, rank, &config) ==
          (blocking ? ncclSuccess : ncclInProgress));
    CHECK(state_of(comm) == ncclSuccess);
    std::atomic<bool> done{false};
    std::thread observer([&] {
      while (!done) {
        CHECK(stat(comm, ncclStatGpuMemTotal) > 0);
        pause(1);
      }
    });
    const cudaStream_t stream = new_stream();
    const auto change = [&](ncclResult_t result) {
      CHECK(result == (blocking ? ncclSuccess : ncclInProgress));
      CHECK(state_of(comm) == ncclSuccess);
    };
    for (int times = 0; times < 10; ++times) {
      std::vector<int32_t> data(50000, rank);
      std::vector<int32_t> message(5000, rank);
      issued(comm, ncclAllReduce(data.data(), data.data(), data.size(), ncclInt32, ncclSum, comm,
                                 stream));
      OK(ncclGroupStart());
      OK(ncclSend(data.data() + 1, 1, ncclInt32, (rank + 1) % 3, comm, stream));
      OK(ncclRecv(message.data(), 1, ncclInt32, (rank + 2) % 3, comm, stream));
      issued(comm, ncclGroupEnd());
      change(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
      CHECK(data[0] == 3 && data.back() == 3 && message[0] == 3);
      CHECK(stat(comm, ncclStatGpuMemSuspended) == 1);
      CHECK(stat(comm, ncclStatGpuMemSuspend) == 0);
      int32_t value = 0;
      if (blocking)  // a non-blocking communicator keeps the error of a rejected call
        EXPECT(ncclInvalidUsage,
               ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr));
      change(ncclCommResume(comm));
    }
    done = true;
    observer.join();
    OK(hostStreamSynchronize(stream));
    OK(hostStreamDestroy(stream));
    OK(ncclCommDestroy(comm));
  });
}

// A rank does not participate in a suspension. Revoking ends the calls of the others.
void revoke_a_suspension() {
  with_communicators(3, [](int rank, ncclComm_t comm) {
    if (rank != 0) {
      const ncclResult_t result = ncclCommSuspend(comm, NCCL_SUSPEND_MEM);
      CHECK(result == ncclRemoteError);
    } else {
      pause(20);
    }
    OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    ncclComm_t child;
    OK(ncclCommSplit(comm, 0, 0, &child, nullptr));
    CHECK(sum_over(child, 1) == 3);
    OK(ncclCommDestroy(child));
  });
}

}  // namespace

void derive() {
  for (int times = 0; times < 10; ++times) {
    revoke_during_operations(false);
    revoke_during_operations(true);
    revoke_together();
    shrink_with_abort();
    shrink_and_grow();
  }
  suspend_and_resume(true);
  suspend_and_resume(false);
  revoke_a_suspension();
}

}  // namespace stress
