// Windows and one-sided operations: puts of random sizes between all ranks with signals,
// collectives inside and outside windows, ranks in two processes, deregistration and abort
// meanwhile.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

#include "stress.h"

namespace stress {
namespace {

constexpr size_t kBytes = size_t{256} << 10;  // of a rank's window
constexpr size_t kInts = kBytes / sizeof(int32_t);

// Memory from ncclMemAlloc, registered by all ranks.
struct Registered {
  ncclComm_t comm;
  int32_t* data = nullptr;
  ncclWindow_t window = nullptr;

  explicit Registered(ncclComm_t owner) : comm(owner) {
    void* memory = nullptr;
    OK(ncclMemAlloc(&memory, kBytes));
    data = static_cast<int32_t*>(memory);
    OK(ncclCommWindowRegister(comm, data, kBytes, &window, 0x01));
    void* pointer = nullptr;
    OK(ncclWinGetUserPtr(comm, window, &pointer));
    CHECK(pointer == memory);
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  ~Registered() {
    OK(ncclCommWindowDeregister(comm, window));
    OK(ncclMemFree(data));
  }
};

void wait_for(int peer, int count, ncclComm_t comm, cudaStream_t stream = nullptr) {
  ncclWaitSignalDesc_t signal{count, peer, 0, 0};
  OK(ncclWaitSignal(1, &signal, comm, stream));
}

// Every rank puts to every other rank, into its own part of the target window.
void all_put(int rank, int nranks, ncclComm_t comm, int repetitions) {
  const Registered outgoing(comm), incoming(comm);
  const size_t part = kInts / size_t(nranks);
  std::mt19937 random{unsigned(rank)};
  for (int round = 0; round < repetitions; ++round) {
    for (int peer = 0; peer < nranks; ++peer) {
      const size_t count = 1 + (random() % 3 == 0 ? random() % (part - 1) : random() % 7);
      int32_t* data = outgoing.data + size_t(peer) * part;
      for (size_t i = 0; i < count; ++i) data[i] = int32_t(rank * 100000 + round);
      const size_t at = size_t(rank) * part;
      int32_t length = int32_t(count);
      std::memcpy(data + part - 1, &length, sizeof length);
      OK(ncclPutSignal(data, count, ncclInt32, peer, incoming.window, at * sizeof(int32_t), 0, 0, 0,
                       comm, nullptr));
      OK(ncclPutSignal(data + part - 1, 1, ncclInt32, peer, incoming.window,
                       (at + part - 1) * sizeof(int32_t), 0, 0, 0, comm, nullptr));
    }
    for (int step = 0; step < nranks; ++step) {
      const int peer = (rank + step) % nranks;
      wait_for(peer, 2, comm);
      const int32_t* data = incoming.data + size_t(peer) * part;
      const int32_t length = data[part - 1];
      for (int32_t i = 0; i < length; ++i) CHECK(data[i] == peer * 100000 + round);
      OK(ncclSignal(peer, 0, 0, 0, comm, nullptr));
    }
    for (int peer = 0; peer < nranks; ++peer) wait_for(peer, 1, comm);
  }
}

// The sums are the same, regardless of which ranks have their data in a window.
void sums(int rank, int nranks, ncclComm_t comm, int repetitions) {
  const Registered inside(comm);
  std::vector<int32_t> outside(kInts);
  for (int round = 0; round < repetitions; ++round) {
    int32_t* data = (round + rank) % 3 == 0 && round % 2 == 1 ? outside.data() : inside.data;
    for (size_t i = 0; i < kInts; ++i) data[i] = int32_t(i) + rank;
    OK(ncclAllReduce(data, data, kInts, ncclInt32, ncclSum, comm, nullptr));
    for (size_t i = 0; i < kInts; i += 17) {
      CHECK(data[i] == int32_t(i) * nranks + nranks * (nranks - 1) / 2);
    }
  }
}

void threads() {
  for (const int nranks : {2, 4}) {
    with_communicators(nranks, [&](int rank, ncclComm_t comm) {
      all_put(rank, nranks, comm, 60);
      sums(rank, nranks, comm, 12);
    });
  }
}

// A rank deregisters its window and frees the memory while another writes to it.
void freed_under_a_writer() {
  std::atomic<bool> freed{false};
  with_communicators(2, [&](int rank, ncclComm_t comm) {
    Registered* own = new Registered(comm);
    int32_t one = 1;
    OK(ncclAllReduce(&one, &one, 1, ncclInt32, ncclSum, comm, nullptr));
    if (rank == 0) {
      delete own;
      freed = true;
      return;
    }
    for (int i = 0; i < 100 || !freed; ++i) {
      OK(ncclPutSignal(own->data, kInts, ncclInt32, 0, own->window, 0, 0, 0, 0, comm, nullptr));
    }
    delete own;
  });
}

void on_streams() {
  with_communicators(2, [](int rank, ncclComm_t comm) {
    const Registered outgoing(comm), incoming(comm);
    const cudaStream_t stream = new_stream();
    for (int i = 1; i < 200; ++i) {
      outgoing.data[0] = i;
      OK(ncclPutSignal(outgoing.data, 1, ncclInt32, 1 - rank, incoming.window, 0, 0, 0, 0, comm,
                       stream));
      wait_for(1 - rank, 1, comm, stream);
      OK(hostStreamSynchronize(stream));
      CHECK(incoming.data[0] == i);
      OK(ncclSignal(1 - rank, 0, 0, 0, comm, stream));
      wait_for(1 - rank, 1, comm, stream);
      OK(hostStreamSynchronize(stream));
    }
    OK(hostStreamDestroy(stream));
  });
}

// All ranks in one thread.
void in_a_group() {
  constexpr int kRanks = 3;
  ncclComm_t comms[kRanks];
  OK(ncclCommInitAll(comms, kRanks, nullptr));
  void* memory[kRanks];
  ncclWindow_t windows[kRanks];
  for (void*& one : memory) OK(ncclMemAlloc(&one, kBytes));
  OK(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    OK(ncclCommWindowRegister(comms[rank], memory[rank], kBytes, &windows[rank], 0x01));
  }
  OK(ncclGroupEnd());
  for (int round = 0; round < 50; ++round) {
    for (void* one : memory) static_cast<int32_t*>(one)[0] = round;
    OK(ncclGroupStart());
    for (int rank = 0; rank < kRanks; ++rank) {
      OK(ncclPutSignal(memory[rank], 1, ncclInt32, (rank + 1) % kRanks, windows[rank], 64, 0, 0, 0,
                       comms[rank], nullptr));
      OK(ncclSignal((rank + 2) % kRanks, 0, 0, 0, comms[rank], nullptr));
      ncclWaitSignalDesc_t signals[] = {{1, (rank + 1) % kRanks, 0, 0},
                                        {1, (rank + 2) % kRanks, 0, 0}};
      OK(ncclWaitSignal(2, signals, comms[rank], nullptr));
    }
    OK(ncclGroupEnd());
    for (void* one : memory) CHECK(static_cast<int32_t*>(one)[16] == round);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    OK(ncclCommWindowDeregister(comms[rank], windows[rank]));
    EXPECT(ncclInternalError, ncclCommWindowDeregister(comms[rank], windows[rank]));
    OK(ncclCommDestroy(comms[rank]));
    OK(ncclMemFree(memory[rank]));
  }
}

void abort_ends_a_wait() {
  with_communicators(2, [](int rank, ncclComm_t comm) {
    const Registered own(comm);
    ncclConfig_t config;
    config.rmaEagerInit = 1;
    ncclComm_t child = nullptr;
    OK(ncclCommSplit(comm, rank, 0, &child, &config));
    std::thread aborter([child] {
      pause(50);
      OK(ncclCommAbort(child));
    });
    ncclWaitSignalDesc_t signal{1, 0, 0, 0};
    EXPECT(ncclInvalidUsage, ncclWaitSignal(1, &signal, child, nullptr));
    aborter.join();
  });
}

void non_blocking_registration() {
  const ncclUniqueId id = new_id();
  in_threads(2, [&](int rank) {
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, rank, &config));
    CHECK(state_of(comm) == ncclSuccess);
    void* memory = nullptr;
    ncclWindow_t window = nullptr;
    OK(ncclMemAlloc(&memory, kBytes));
    issued(comm, ncclCommWindowRegister(comm, memory, kBytes, &window, 0x01));
    CHECK(window != nullptr);
    issued(comm, ncclPutSignal(memory, 8, ncclInt8, 1 - rank, window, 64, 0, 0, 0, comm, nullptr));
    ncclWaitSignalDesc_t signal{1, 1 - rank, 0, 0};
    issued(comm, ncclWaitSignal(1, &signal, comm, nullptr));
    OK(ncclCommDestroy(comm));  // with the window open
    OK(ncclMemFree(memory));
  });
}

}  // namespace

void windows() {
  threads();
  freed_under_a_writer();
  on_streams();
  in_a_group();
  abort_ends_a_wait();
  non_blocking_registration();
}

// Two processes with two ranks each. Windows of the other process are mapped, and those of this
// process are used in place. The fork happens before the process has other threads.
void windows_of_processes() {
  const ncclUniqueId id = new_id();
  pid_t children[2];
  for (int process = 0; process < 2; ++process) {
    children[process] = fork();
    CHECK(children[process] >= 0);
    if (children[process] != 0) continue;
    in_threads(2, [&](int thread) {
      const int rank = 2 * process + thread;
      ncclComm_t comm = nullptr;
      OK(ncclCommInitRank(&comm, 4, id, rank));
      all_put(rank, 4, comm, 40);
      sums(rank, 4, comm, 12);
      OK(ncclCommDestroy(comm));
    });
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

}  // namespace stress
