// Every collective is checked against plain loops over the ranks' inputs: sizes around each
// threshold, in place and out of place, ranks in threads of their own and all in one thread.
#include <cstdint>
#include <type_traits>

#include "stress.h"

namespace stress {
namespace {

template <typename T>
constexpr ncclDataType_t kType = std::is_same_v<T, int32_t>   ? ncclInt32
                                 : std::is_same_v<T, uint8_t> ? ncclUint8
                                                              : ncclFloat64;

// Small integers: a sum is exact in every type and order.
template <typename T>
T input(int rank, size_t index) {
  return static_cast<T>((index * 7 + static_cast<size_t>(rank) * 3 + 1) % 5);
}

template <typename T>
std::vector<T> inputs(int rank, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = input<T>(rank, i);
  return values;
}

template <typename T>
struct Case {
  int rank;
  int nranks;
  ncclComm_t comm;
  size_t count;
  int root;
  bool in_place;
  ncclDataType_t type = kType<T>;

  size_t n() const { return static_cast<size_t>(nranks); }
  size_t r() const { return static_cast<size_t>(rank); }

  T sum(size_t index) const {
    T total = 0;
    for (int peer = 0; peer < nranks; ++peer) total = static_cast<T>(total + input<T>(peer, index));
    return total;
  }

  void all_reduce() const {
    std::vector<T> send = inputs<T>(rank, count);
    std::vector<T> out(count);
    T* recv = in_place ? send.data() : out.data();
    OK(ncclAllReduce(send.data(), recv, count, type, ncclSum, comm, nullptr));
    for (size_t i = 0; i < count; ++i) CHECK(recv[i] == sum(i));
  }

  void average() const {
    std::vector<T> values = inputs<T>(rank, count);
    OK(ncclAllReduce(values.data(), values.data(), count, type, ncclAvg, comm, nullptr));
    for (size_t i = 0; i < count; ++i) CHECK(values[i] == static_cast<T>(sum(i) / T(nranks)));
  }

  void reduce() const {
    std::vector<T> send = inputs<T>(rank, count);
    std::vector<T> out(rank == root ? count : 0);
    T* recv = in_place ? send.data() : out.data();
    OK(ncclReduce(send.data(), recv, count, type, ncclMax, root, comm, nullptr));
    for (size_t i = 0; i < count && rank == root; ++i) {
      T most = 0;
      for (int peer = 0; peer < nranks; ++peer) most = std::max(most, input<T>(peer, i));
      CHECK(recv[i] == most);
    }
  }

  void broadcast() const {
    std::vector<T> send = inputs<T>(rank, count);
    std::vector<T> out(count);
    T* recv = in_place ? send.data() : out.data();
    OK(ncclBroadcast(send.data(), recv, count, type, root, comm, nullptr));
    for (size_t i = 0; i < count; ++i) CHECK(recv[i] == input<T>(root, i));
  }

  void all_gather() const {
    std::vector<T> recv(count * n());
    std::vector<T> send = inputs<T>(rank, count);
    if (in_place) std::copy(send.begin(), send.end(), recv.begin() + std::ptrdiff_t(r() * count));
    OK(ncclAllGather(in_place ? recv.data() + r() * count : send.data(), recv.data(), count, type,
                     comm, nullptr));
    for (size_t i = 0; i < recv.size(); ++i) CHECK(recv[i] == input<T>(int(i / count), i % count));
  }

  void reduce_scatter() const {
    std::vector<T> send = inputs<T>(rank, count * n());
    std::vector<T> out(count);
    T* recv = in_place ? send.data() + r() * count : out.data();
    OK(ncclReduceScatter(send.data(), recv, count, type, ncclSum, comm, nullptr));
    for (size_t i = 0; i < count; ++i) CHECK(recv[i] == sum(r() * count + i));
  }

  void all_to_all() const {
    const std::vector<T> send = inputs<T>(rank, count * n());
    std::vector<T> recv(count * n());
    OK(ncclAlltoAll(send.data(), recv.data(), count, type, comm, nullptr));
    for (size_t i = 0; i < recv.size(); ++i) {
      CHECK(recv[i] == input<T>(int(i / count), r() * count + i % count));
    }
  }

  void gather() const {
    std::vector<T> send = inputs<T>(rank, count);
    std::vector<T> recv(rank == root ? count * n() : 0);
    const bool root_in_place = in_place && rank == root;
    if (root_in_place)
      std::copy(send.begin(), send.end(), recv.begin() + std::ptrdiff_t(r() * count));
    OK(ncclGather(root_in_place ? recv.data() + r() * count : send.data(), recv.data(), count, type,
                  root, comm, nullptr));
    for (size_t i = 0; i < recv.size(); ++i) CHECK(recv[i] == input<T>(int(i / count), i % count));
  }

  void scatter() const {
    std::vector<T> send = rank == root ? inputs<T>(rank, count * n()) : std::vector<T>();
    std::vector<T> out(count);
    T* recv = in_place && rank == root ? send.data() + r() * count : out.data();
    OK(ncclScatter(send.data(), recv, count, type, root, comm, nullptr));
    for (size_t i = 0; i < count; ++i) CHECK(recv[i] == input<T>(root, r() * count + i));
  }

  void multiplied() const {
    T own = static_cast<T>(rank + 1);
    const bool by_address = rank % 2 == 0;
    ncclRedOp_t op;
    OK(ncclRedOpCreatePreMulSum(&op, &own, type,
                                by_address ? ncclScalarDevice : ncclScalarHostImmediate, comm));
    if (!by_address) own = 0;
    std::vector<T> values = inputs<T>(rank, count);
    OK(ncclAllReduce(values.data(), values.data(), count, type, op, comm, nullptr));
    OK(ncclRedOpDestroy(op, comm));
    for (size_t i = 0; i < count; ++i) {
      T total = 0;
      for (int peer = 0; peer < nranks; ++peer) {
        total = static_cast<T>(total + input<T>(peer, i) * T(peer + 1));
      }
      CHECK(values[i] == total);
    }
  }

  void all() const {
    all_reduce();
    average();
    reduce();
    broadcast();
    all_gather();
    reduce_scatter();
    all_to_all();
    gather();
    scatter();
    multiplied();
  }
};

template <typename T>
void every_case(int rank, int nranks, ncclComm_t comm, std::initializer_list<size_t> counts) {
  for (const size_t count : counts) {
    for (const bool in_place : {false, true}) {
      Case<T>{rank, nranks, comm, count, int(count) % nranks, in_place}.all();
    }
  }
}

// All ranks in this thread, by groups.
void in_one_thread() {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 3000;
  ncclComm_t comms[kRanks];
  OK(ncclCommInitAll(comms, kRanks, nullptr));
  std::vector<std::vector<int32_t>> values;
  for (int rank = 0; rank < kRanks; ++rank) values.push_back(inputs<int32_t>(rank, kCount));
  const std::vector<std::vector<int32_t>> before = values;
  for (int times = 0; times < 5; ++times) {
    OK(ncclGroupStart());
    for (int rank = kRanks - 1; rank >= 0; --rank) {
      int32_t* data = values[size_t(rank)].data();
      OK(ncclAllReduce(data, data, kCount, ncclInt32, ncclSum, comms[rank], nullptr));
      OK(ncclBroadcast(data, data, kCount, ncclInt32, times % kRanks, comms[rank], nullptr));
    }
    OK(ncclGroupEnd());
  }
  for (size_t i = 0; i < kCount; ++i) {
    int32_t sum = 0;
    for (const auto& inputs_of_rank : before) sum += inputs_of_rank[i];
    for (const auto& results : values) CHECK(results[i] == sum * 256);
  }
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
