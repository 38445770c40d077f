#include "nccl/peers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "driver/settings.h"

namespace cuda_double {
namespace {

std::string folder() {
  const char* given = std::getenv("CUDA_DOUBLE_FOLDER");
  return given && *given ? given : "/tmp";
}

// A process that is dead, including a zombie, has no connections.
bool alive(int pid) {
  std::FILE* file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
  if (file == nullptr) return false;
  char state = 'Z';
  const int read = std::fscanf(file, "%*d (%*[^)]) %c", &state);
  std::fclose(file);
  return read == 1 && state != 'Z' && state != 'X';
}

}  // namespace

Peers::Peers(const std::string& key, int nranks, int rank) : nranks_(nranks), rank_(rank) {
  char name[40];
  std::snprintf(name, sizeof name, "/nccl-double-%016zx", std::hash<std::string>()(key));
  path_ = folder() + name;
  bytes_ = sizeof(std::atomic<int>) * static_cast<size_t>(nranks * (2 * nranks + 5));
  const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0) {
    std::perror(path_.c_str());
    std::abort();
  }
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  words_ = static_cast<std::atomic<int>*>(memory);
  // An earlier creation with this id may have failed.
  for (auto* word : {&closed(rank), &set_up_word(rank), &called(rank), &gpu(rank)}) word->store(0);
  for (int peer = 0; peer < nranks; ++peer) {
    connected(rank, peer).store(0);
    messages(rank, peer).store(0);
  }
  pid(rank).store(getpid());
}

Peers::~Peers() {
  close();
  bool last = true;
  for (int peer = 0; peer < nranks_; ++peer) last = last && pid(peer).load() != 0 && !in_use(peer);
  if (last) unlink(path_.c_str());
  munmap(words_, bytes_);
}

void Peers::place(int device) {
  const char* host = std::getenv("NCCL_HOSTID");
  const std::string text = std::to_string(device) + " of " + (host ? host : "this host");
  gpu(rank_).store(static_cast<int>(std::hash<std::string>()(text) | 1));
}

bool Peers::share_gpu() const {
  for (int rank = 0; rank < nranks_; ++rank)
    for (int other = 0; other < rank; ++other)
      if (gpu(rank).load() != 0 && gpu(rank).load() == gpu(other).load()) return true;
  return false;
}

void Peers::connect(int peer) {
  for (int other = 0; other < nranks_; ++other)
    if (peer < 0 || peer == other) connected(rank_, other).store(1);
}

void Peers::close() { closed(rank_).store(1); }

bool Peers::wait_set_up(const std::atomic<bool>& aborted) const {
  for (int peer = 0; peer < nranks_; ++peer) {
    const auto gone = [&] {
      return closed(peer).load() != 0 || (pid(peer).load() != 0 && !in_use(peer));
    };
    wait_while([&] { return set_up_word(peer).load() == 0 && !aborted.load() && !gone(); });
    if (set_up_word(peer).load() == 0) return false;
  }
  return true;
}

bool Peers::all_called() const {
  for (int rank = 0; rank < nranks_; ++rank)
    if (called(rank).load() == 0) return false;
  return true;
}

bool Peers::in_use(int rank) const {
  return closed(rank).load() == 0 && pid(rank).load() != 0 && alive(pid(rank).load());
}

void Peers::wait() const {
  for (int own = 0; own < nranks_; ++own)
    if (pid(own).load() == getpid() && closed(own).load() == 0) return;
  for (int own = 0; own < nranks_; ++own) {
    if (pid(own).load() != getpid()) continue;
    for (int peer = 0; peer < nranks_; ++peer)
      wait_while([&] { return connected(peer, own).load() != 0 && in_use(peer); });
  }
}

}  // namespace cuda_double
