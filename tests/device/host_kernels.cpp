// Runs each function of pynccl/device.h and kernels of the examples with ranks that are threads,
// and compares with what one thread computes. test_over_hostnccl() runs the other kernels.
//
//     host_kernels RANKS [SEED]
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "all_gather_matmul.cu"
#include "all_reduce.cu"
#include "fake_world.h"
#include "matmul_reduce_scatter.cu"
#include "moe.cu"

namespace {

using namespace pynccl::device;
using fake::check;
using fake::World;

using Random = std::mt19937;

std::vector<float> floats(Random& random, size_t count) {
  std::vector<float> values(count);
  for (float& v : values) v = std::ldexp(static_cast<float>(random() % 4096) - 2048, -8);
  return values;
}

void sometimes_late(Random& random) {
  if (random() % 8 == 0) usleep(300);  // long enough for peers to sleep
}

void test_words(World& world) {
  const uint32_t begin = std::numeric_limits<uint32_t>::max() - 20;  // wraps around
  world.run([&](int rank) { *world.memory<uint32_t>(rank, 0) = begin; });
  int passed = 0;
  world.run([&](int rank) {  // a token goes round
    const Block block;
    const ncclDevComm& comm = world.comm(rank);
    const int next = (rank + 1) % world.ranks();
    for (uint32_t turn = 1; turn < 100; ++turn) {
      if (rank == 0) {
        signal(block, comm, next, lsa<uint32_t>(world.window(rank), 0, next), begin + turn);
      }
      check(wait(block, comm, local<uint32_t>(world.window(rank), 0), begin + turn), "wait");
      const int before = (rank + world.ranks() - 1) % world.ranks();
      check(passed++ == (static_cast<int>(turn) - 1) * world.ranks() + before, "the token's order");
      if (rank != 0) {
        signal(block, comm, next, peer<uint32_t>(world.window(rank), 0, next), begin + turn);
      }
    }
  });
  world.run([&](int rank) {  // all add to rank 0
    const Block block;
    const ncclDevComm& comm = world.comm(rank);
    constexpr uint64_t kRounds = 100;
    for (uint64_t i = 0; i < kRounds; ++i) {
      add_signal(block, comm, 0, lsa<uint64_t>(world.window(rank), 64, 0), 3);
    }
    auto* word = local<uint64_t>(world.window(rank), 64);
    if (rank == 0) check(wait(block, comm, word, 3 * kRounds * world.ranks()), "sum of signals");
    if (rank != 0) check(!wait_for(block, comm, word, 1, 1000000), "a word that is not set");
    if (rank == 0) check(wait_for(block, comm, word, 1, 0), "a word that is set");
  });
}

void test_copies(World& world) {
  Random random(1);
  for (const size_t bytes : {0, 1, 15, 16, 64, 1000, 70000}) {
    for (const size_t offset : {128, 131, 144}) {
      std::vector<char> sent(bytes);
      for (char& c : sent) c = static_cast<char>(random());
      world.run([&](int rank) {
        const Block block;
        const int next = (rank + 1) % world.ranks();
        LsaBarrier barrier(block, world.comm(rank), 1);
        put(block, world.window(rank), offset, next, sent.data(), bytes);
        check(barrier.sync(), "barrier");
        std::vector<char> got(bytes);
        get(block, got.data(), world.window(rank), offset, next, bytes);
        check(got == sent, "get");
        copy(block, got.data(), local(world.window(rank), offset), bytes);
        check(got == sent, "copy");
        check(barrier.sync(), "barrier");
      });
    }
  }
}

void test_barriers(World& world) {
  std::vector<int> turns(world.ranks(), 0);
  world.run([&](int rank) {
    Random random(rank);
    for (int turn = 1; turn < 200; ++turn) {
      LsaBarrier barrier(Block(), world.comm(rank), turn % World::kBarriers);
      turns[rank] = turn;
      sometimes_late(random);
      barrier.arrive();
      check(barrier.wait(), "barrier");
      for (const int seen : turns) check(seen == turn, "a rank had not arrived");
      check(barrier.sync(), "barrier");
    }
  });
}

// The sum over the ranks in their order, in the type that sums have.
template <typename T>
std::vector<T> sums(World& world, size_t offset, size_t count) {
  std::vector<T> result(count);
  for (size_t i = 0; i < count; ++i) {
    typename detail::Sum<T>::type value = world.memory<T>(0, offset)[i];
    for (int r = 1; r < world.ranks(); ++r) value += world.memory<T>(r, offset)[i];
    result[i] = static_cast<T>(value);
  }
  return result;
}

template <typename T>
void test_collectives(World& world, int blocks) {
  Random random(2);
  const int n = world.ranks();
  for (const size_t count : {0, 1, 3, 100, 5000}) {
    for (const size_t offset : {1024, 1024 + 8}) {
      for (int r = 0; r < n; ++r) {
        T* values = world.memory<T>(r, offset);
        for (size_t i = 0; i < count * n; ++i) {
          values[i] = static_cast<T>(static_cast<int>(random() % 4096) - 2048) / 7;
        }
      }
      const std::vector<T> expected = sums<T>(world, offset, count * n);
      world.run([&](int rank) {
        std::vector<T> reduced(count), buffered(count), scattered(count), gathered(count * n);
        const auto run = [&](Block block) {
          const ncclDevComm& comm = world.comm(rank);
          ncclWindow_t window = world.window(rank);
          check(all_reduce_one_shot(block, comm, window, offset, reduced.data(), count), "sum");
          check(all_reduce_buffered(block, comm, window, 1 << 20, 8192,
                                    local<const T>(window, offset), buffered.data(), count),
                "buffered");
          check(reduce_scatter(block, comm, window, offset, scattered.data(), count), "scatter");
          check(all_gather(block, comm, window, offset, gathered.data(), count), "gather");
        };
        std::vector<std::thread> others;
        for (int b = 1; b < blocks; ++b) others.emplace_back(run, Block(b, blocks));
        run(Block(0, blocks));
        for (std::thread& other : others) other.join();
        const auto same = [&](const std::vector<T>& got, const T* wanted) {
          return std::memcmp(got.data(), wanted, got.size() * sizeof(T)) == 0;
        };
        if (count == 0) return;
        check(same(reduced, expected.data()), "all_reduce_one_shot");
        check(same(buffered, expected.data()), "all_reduce_buffered");
        check(same(scattered, expected.data() + rank * count), "reduce_scatter");
        for (int r = 0; r < n; ++r) {
          check(std::memcmp(gathered.data() + r * count, world.memory<T>(r, offset),
                            count * sizeof(T)) == 0,
                "all_gather");
        }
      });
    }
  }
}

std::vector<double> product(const std::vector<float>& a, const std::vector<float>& b, int rows,
                            int depth, int columns) {
  std::vector<double> c(static_cast<size_t>(rows) * columns);
  for (int i = 0; i < rows; ++i) {
    for (int k = 0; k < depth; ++k) {
      for (int j = 0; j < columns; ++j)
        c[i * columns + j] += double{a[i * depth + k]} * b[k * columns + j];
    }
  }
  return c;
}

void check_close(const float* got, const double* expected, size_t count, const char* what) {
  for (size_t i = 0; i < count; ++i) {
    check(std::abs(got[i] - expected[i]) <= 1e-4 * (1 + std::abs(expected[i])), what);
  }
}

struct Shape {
  int rows, depth, columns, tile;
};
constexpr Shape kShapes[] = {{1, 1, 1, 1}, {10, 17, 33, 4}, {32, 64, 128, 8}};

void test_all_gather_matmul(World& world) {
  const int n = world.ranks();
  for (const auto& [rows, depth, columns, tile] : kShapes) {
    Random random(3);
    const auto b = floats(random, depth * columns);
    std::vector<std::vector<float>> a(10), out(n, std::vector<float>(n * rows * columns));
    for (auto& one : a) one = floats(random, n * rows * depth);
    world.run([&](int rank) {
      Random late(rank);
      std::memset(local(world.window(rank), 0), 0, 4096);
      LsaBarrier zeroed(Block(), world.comm(rank), 3);
      check(zeroed.sync(), "barrier");
      for (uint32_t epoch = 1; epoch <= a.size(); ++epoch) {
        sometimes_late(late);
        AllGatherMatmulArguments arguments{world.comm(rank),
                                           world.window(rank),
                                           4096,
                                           0,
                                           a[epoch - 1].data() + rank * rows * depth,
                                           b.data(),
                                           out[rank].data(),
                                           rows,
                                           depth,
                                           columns,
                                           tile,
                                           epoch};
        all_gather_matmul(&arguments);
        const auto expected = product(a[epoch - 1], b, n * rows, depth, columns);
        check_close(out[rank].data(), expected.data(), expected.size(), "all_gather_matmul");
      }
    });
  }
}

void test_matmul_reduce_scatter(World& world) {
  const int n = world.ranks();
  for (const auto& [rows, depth, columns, tile] : kShapes) {
    Random random(4);
    std::vector<std::vector<float>> a(n), b(n);
    std::vector<double> expected(n * rows * columns);
    for (int r = 0; r < n; ++r) {
      a[r] = floats(random, n * rows * depth);
      b[r] = floats(random, depth * columns);
      const auto part = product(a[r], b[r], n * rows, depth, columns);
      for (size_t i = 0; i < part.size(); ++i) expected[i] += part[i];
    }
    world.run([&](int rank) {
      Random late(rank);
      std::memset(local(world.window(rank), 0), 0, 4096);
      LsaBarrier zeroed(Block(), world.comm(rank), 3);
      check(zeroed.sync(), "barrier");
      for (uint32_t epoch = 1; epoch <= 10; ++epoch) {
        sometimes_late(late);
        std::vector<float> out(rows * columns);
        MatmulReduceScatterArguments arguments{world.comm(rank),
                                               world.window(rank),
                                               4096,
                                               0,
                                               a[rank].data(),
                                               b[rank].data(),
                                               out.data(),
                                               rows,
                                               depth,
                                               columns,
                                               tile,
                                               epoch};
        matmul_reduce_scatter(&arguments);
        check_close(out.data(), expected.data() + rank * rows * columns, out.size(),
                    "matmul_reduce_scatter");
      }
    });
  }
}

void test_moe(World& world) {
  const int n = world.ranks();
  constexpr int kTokens = 40, kWidth = 24;
  world.run([&](int rank) {
    std::memset(local(world.window(rank), 0), 0, 4096);
    LsaBarrier zeroed(Block(), world.comm(rank), 3);
    check(zeroed.sync(), "barrier");
    Random random(rank);
    for (uint32_t epoch = 1; epoch <= 20; ++epoch) {
      const int tokens = static_cast<int>(random() % kTokens);
      const auto in = floats(random, tokens * kWidth);
      const auto weight = floats(random, tokens);
      std::vector<int> target(tokens), order(tokens), begin(n + 1);
      for (int& t : target) t = static_cast<int>(random() % (epoch % 3 == 0 ? 1 : n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int x, int y) { return target[x] < target[y]; });
      for (const int t : target) ++begin[t + 1];
      std::partial_sum(begin.begin(), begin.end(), begin.begin());
      std::vector<float> result(n * kTokens * kWidth), out(tokens * kWidth);
      MoeArguments a{world.comm(rank),
                     world.window(rank),
                     1024,
                     4096,
                     2 << 20,
                     0,
                     in.data(),
                     order.data(),
                     begin.data(),
                     weight.data(),
                     result.data(),
                     out.data(),
                     tokens,
                     kWidth,
                     kTokens,
                     epoch};
      sometimes_late(random);
      moe_dispatch(&a);
      const auto* headers = local<MoeHeader>(a.window, a.headers);
      const auto* received = local<float>(a.window, a.received);
      for (int from = 0; from < n; ++from) {
        for (int i = 0; i < headers[from].count * kWidth; ++i) {
          result[from * kTokens * kWidth + i] =
              received[from * kTokens * kWidth + i] * static_cast<float>(rank + 1);
        }
      }
      moe_combine(&a);
      for (int i = 0; i < tokens * kWidth; ++i) {
        const int t = i / kWidth;
        check(out[i] == weight[t] * (in[i] * static_cast<float>(target[t] + 1)), "moe");
      }
    }
  });
}

void test_failures(World& world) {
  ncclDevComm other = world.comm(0);
  const auto refused = [&](const char* what) {
    try {
      std::vector<float> out(1);
      AllReduceArguments a{other, world.window(0), 0, out.data(), 1};
      all_reduce_float32(&a);
      check(false, "a device communicator of another version is accepted");
    } catch (const std::runtime_error& error) {
      check(std::strstr(error.what(), what) != nullptr, error.what());
    }
  };
  other.version = 22907;
  refused("23203, and this one is of NCCL 22907");
  other.version = kVersion + 100;
  refused("is of NCCL 23303");
  other.magic = 0;
  refused("has no version");
  if (world.ranks() == 1) return;
  std::thread aborter([&] {
    usleep(20000);
    world.abort();
  });
  // Rank 0 waits for peers that do not come, asleep. Aborting wakes it within the futex's time.
  std::vector<float> out(1);
  check(!all_reduce_one_shot(Block(), world.comm(0), world.window(0), 0, out.data(), 1), "abort");
  aborter.join();
}

}  // namespace

int main(int argc, char** argv) {
  World world(argc > 1 ? std::atoi(argv[1]) : 2);
  check(pynccl_device_version == kVersion, "version");
  test_words(world);
  test_copies(world);
  test_barriers(world);
  for (const int blocks : {1, 3}) {
    test_collectives<float>(world, blocks);
    test_collectives<int>(world, blocks);
#ifdef __FLT16_MAX__
    test_collectives<_Float16>(world, blocks);
#endif
  }
  test_all_gather_matmul(world);
  test_matmul_reduce_scatter(world);
  test_moe(world);
  test_failures(world);
  std::puts("ok");
}
