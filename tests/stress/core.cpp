// Stress program of the core: flight recorder, deadlines and monitor over hostnccl, with ranks as
// threads. Records are read and dumped while they are written. Limits expire in calls, on streams,
// in launches of graphs, and outside all of them.
//
//     stress_core LIBHOSTNCCL
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/graph.h"
#include "comm/stream.h"
#include "watch/flight_dump.h"
#include "watch/observers.h"

namespace {

using namespace pynccl;

constexpr int kRanks = 3;
constexpr double kShort = 0.2;  // seconds
constexpr double kLong = 60;

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

ncclUniqueId new_id(const Library& library) {
  ncclUniqueId id;
  CHECK(library.nccl<&NcclTable::ncclGetUniqueId>()(&id) == ncclSuccess);
  return id;
}

std::shared_ptr<Communicator> join(const std::shared_ptr<Library>& library, const ncclUniqueId& id,
                                   int rank, double timeout) {
  Communicator::Options options;
  options.timeout = timeout;
  const auto communicator = std::make_shared<Communicator>(library, options);
  Communicator::create({communicator}, [&] {
    communicator->begin_init(kRanks, {id}, rank);
    communicator->finish();
  });
  return communicator;
}

void all_reduce(Communicator& communicator, float* value, CUstream stream = nullptr) {
  const Operation operation{
      OperationKind::kAllReduce, ncclFloat32, ncclMax, 0, value, value, 1, stream};
  communicator.issue(OperationKind::kAllReduce, operation);
}

template <class Body>
void in_ranks(const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

template <class Call>
void expect_timeout(const Call& call) {
  try {
    call();
  } catch (const NcclFailure& failure) {
    CHECK(failure.code == ncclTimeout || failure.code == ncclRemoteError);
    return;
  }
  CHECK(false);
}

// A reader runs concurrently with the writers. It reads complete records, all of which end as done.
void records(const std::shared_ptr<Library>& library) {
  const ncclUniqueId id = new_id(*library);
  std::atomic<bool> ends = false;
  in_ranks([&](int rank) {
    const auto communicator = join(library, id, rank, 5);
    Deadlines& deadlines = communicator->deadlines();
    std::thread reader([&] {
      while (!ends) {
        deadlines.update();
        const std::uint64_t last = deadlines.recorder().last();
        if (const auto record = deadlines.recorder().read(last)) {
          CHECK(record->sequence == last && record->count == 1);
          CHECK(record->kind == OperationKind::kAllReduce && record->dtype == ncclFloat32);
        }
        CHECK(!FlightDump::json("a test").empty());
      }
    });
    Stream stream(library, -1, 0);
    float values[2] = {1, 1};
    for (int i = 0; i < 2000; ++i) {
      all_reduce(*communicator, &values[0]);
      if (i % 4 == 3) all_reduce(*communicator, &values[1], stream.handle());
      if (i % 100 == 3) stream.synchronize();
    }
    stream.synchronize();
    while (deadlines.done() != deadlines.recorder().last()) deadlines.update();
    ends = true;
    reader.join();
    communicator->close();
  });
}

// Rank 0 is missing. The others wait in a call or for a stream.
void expiries(const std::shared_ptr<Library>& library) {
  for (const bool on_stream : {false, true}) {
    const ncclUniqueId id = new_id(*library);
    in_ranks([&](int rank) {
      const auto communicator = join(library, id, rank, rank == 0 ? kLong : kShort);
      float value = 1;
      all_reduce(*communicator, &value);
      if (rank == 0) {
        std::this_thread::sleep_for(std::chrono::duration<double>(3 * kShort));
        communicator->abort();
        return;
      }
      Stream stream(library, -1, 0);
      if (on_stream) {
        all_reduce(*communicator, &value, stream.handle());
        try {
          stream.synchronize();
          CHECK(false);
        } catch (const NcclFailure&) {
        } catch (const DriverFailure&) {  // the limit of another rank expired first
        }
      } else {
        expect_timeout([&] { all_reduce(*communicator, &value); });
      }
      communicator->discard();
    });
  }
}

// A graph is launched while its launches are inspected, with and without limits of their own. Then
// rank 0 is missing.
void launches(const std::shared_ptr<Library>& library) {
  const ncclUniqueId id = new_id(*library);
  in_ranks([&](int rank) {
    const auto communicator = join(library, id, rank, kLong);
    Stream streams[2] = {Stream(library, -1, 0), Stream(library, -1, 0)};
    float value = 1;
    Graph graph(library, streams[0].handle(), -1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    graph.begin();
    all_reduce(*communicator, &value, streams[0].handle());
    graph.end(false);
    std::atomic<bool> ends = false;
    std::thread looker([&] {
      while (!ends) CHECK(!communicator->deadlines().late());
    });
    for (int i = 0; i < 500; ++i) {
      const std::optional<DeadlineScope> scope =
          i % 5 == 0 ? std::optional<DeadlineScope>(std::in_place, 30) : std::nullopt;
      graph.launch(streams[i % 2].handle());
      if (i % 20 == 0) streams[i % 2].synchronize();
    }
    for (const Stream& stream : streams) stream.synchronize();
    ends = true;
    looker.join();
    communicator->set_timeout(rank == 0 ? kLong : kShort);
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(3 * kShort));
    } else {
      graph.launch(streams[0].handle());
      try {
        streams[0].synchronize();
        CHECK(false);
      } catch (const NcclFailure&) {
      } catch (const DriverFailure&) {  // the limit of another rank expired first
      }
    }
    communicator->discard();
  });
}

// Limits expire, and scopes begin and end, while the monitor polls.
void scopes(const std::shared_ptr<Library>& library) {
  const ncclUniqueId id = new_id(*library);
  in_ranks([&](int rank) {
    const auto communicator = join(library, id, rank, kLong);
    float value = 1;
    for (int i = 0; i < 300; ++i) {
      const DeadlineScope scope(5);
      communicator->set_timeout(i % 2 == 0 ? kLong : 5);
      all_reduce(*communicator, &value);
    }
    communicator->close();
  });
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2);
  setenv("HOSTNCCL_DEADLOCK_MS", "0", 1);  // only the limits must end the waits
  add_observers();
  const auto library = Library::open(argv[1]);
  for (int i = 0; i < 3; ++i) {
    records(library);
    expiries(library);
    launches(library);
    scopes(library);
  }
  std::printf("core         done\n");
  return 0;
}
