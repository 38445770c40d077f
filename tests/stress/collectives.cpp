// Every collective: sizes around each threshold, in place and out of place, ranks in threads of
// their own and all in one thread. tests/nccl/test_collectives.py checks the values of them all.
#include <cstdint>
#include <type_traits>

#include "stress.h"

namespace stress {
namespace {

template <typename T>
constexpr ncclDataType_t kType = std::is_same_v<T, int32_t>   ? ncclInt32
                                 : std::is_same_v<T, uint8_t> ? ncclUint8
                                                              : ncclFloat64;

template <typename T>
void run_all(int rank, int nranks, ncclComm_t comm, size_t count, bool in_place) {
  constexpr ncclDataType_t type = kType<T>;
  const auto n = static_cast<size_t>(nranks);
  const int root = static_cast<int>(count) % nranks;
  std::vector<T> send(count, T{1}), send_all(count * n, T{1});
  std::vector<T> recv(count), recv_all(count * n);
  T* const one = in_place ? send.data() : recv.data();
  T* const own = send_all.data() + static_cast<size_t>(rank) * count;
  T* const block = in_place ? own : send.data();
  T* const blocks = in_place ? send_all.data() : recv_all.data();
  const bool at_root = in_place && rank == root;

  OK(ncclAllReduce(send.data(), one, count, type, ncclSum, comm, nullptr));
  for (size_t i = 0; i < count; ++i) CHECK(one[i] == static_cast<T>(nranks));
  OK(ncclAllReduce(send.data(), send.data(), count, type, ncclAvg, comm, nullptr));
  OK(ncclReduce(send.data(), one, count, type, ncclMax, root, comm, nullptr));
  OK(ncclBroadcast(send.data(), one, count, type, root, comm, nullptr));
  OK(ncclAllGather(block, blocks, count, type, comm, nullptr));
  OK(ncclReduceScatter(send_all.data(), in_place ? own : recv.data(), count, type, ncclSum, comm,
                       nullptr));
  OK(ncclAlltoAll(send_all.data(), recv_all.data(), count, type, comm, nullptr));
  OK(ncclGather(at_root ? own : send.data(), at_root ? send_all.data() : recv_all.data(), count,
                type, root, comm, nullptr));
  OK(ncclScatter(send_all.data(), at_root ? own : recv.data(), count, type, root, comm, nullptr));

  T factor = static_cast<T>(rank + 1);
  const auto residence = rank % 2 == 0 ? ncclScalarDevice : ncclScalarHostImmediate;
  ncclRedOp_t op;
  OK(ncclRedOpCreatePreMulSum(&op, &factor, type, residence, comm));
  OK(ncclAllReduce(recv.data(), recv.data(), count, type, op, comm, nullptr));
  OK(ncclRedOpDestroy(op, comm));
}

template <typename T>
void every_case(int rank, int nranks, ncclComm_t comm, std::initializer_list<size_t> counts) {
  for (const size_t count : counts) {
    for (const bool in_place : {false, true}) run_all<T>(rank, nranks, comm, count, in_place);
  }
}

// All ranks in this thread, by groups.
void in_one_thread() {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 3000;
  ncclComm_t comms[kRanks];
  OK(ncclCommInitAll(comms, kRanks, nullptr));
  std::vector<std::vector<int32_t>> values(kRanks, std::vector<int32_t>(kCount, 1));
  for (int times = 0; times < 5; ++times) {
    OK(ncclGroupStart());
    for (int rank = kRanks - 1; rank >= 0; --rank) {
      int32_t* data = values[size_t(rank)].data();
      OK(ncclAllReduce(data, data, kCount, ncclInt32, ncclSum, comms[rank], nullptr));
      OK(ncclBroadcast(data, data, kCount, ncclInt32, times % kRanks, comms[rank], nullptr));
    }
    OK(ncclGroupEnd());
  }
  for (const auto& results : values) CHECK(results.front() == 1024 && results.back() == 1024);
  for (const ncclComm_t comm : comms) OK(ncclCommDestroy(comm));
}

}  // namespace

void collectives() {
  for (const int nranks : {1, 2, 3, 5, 8}) {
    with_communicators(nranks, [&](int rank, ncclComm_t comm) {
      every_case<int32_t>(rank, nranks, comm, {0, 1, 17, 1000, 2999});
      every_case<uint8_t>(rank, nranks, comm, {1, 40000});
      if (nranks <= 3) every_case<double>(rank, nranks, comm, {100003});
      if (nranks == 5) every_case<double>(rank, nranks, comm, {20011});
    });
  }
  in_one_thread();
}

}  // namespace stress
