#include "hostnccl/base/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "hostnccl/base/error.h"

namespace hostnccl {
namespace {

constexpr int kTickBits = 40;
constexpr uint64_t kTicks = (uint64_t{1} << kTickBits) - 1;

struct Stat {
  char state = '?';
  long threads = 0;
  uint64_t start = 0;  // as in ProcessId
};

// Returns the number of bytes read, or -1 with errno.
ssize_t read_file(const char* path, char* buffer, size_t size) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  const ssize_t length = read(fd, buffer, size - 1);
  const int error = errno;
  close(fd);
  errno = error;
  if (length >= 0) buffer[length] = '\0';
  return length;
}

bool read_stat(pid_t pid, Stat& stat) {
  char path[64];
  char buffer[1024];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  if (read_file(path, buffer, sizeof buffer) <= 0) return false;
  const char* name_end = std::strrchr(buffer, ')');  // the name may contain any character
  if (name_end == nullptr) return false;
  unsigned long long start = 0;
  unsigned long long stack = 0;
  // Fields 3 (state), 20 (threads), 22 (start time) and 28 (address of the stack) of proc(5).
  const int fields = std::sscanf(name_end + 1,
                                 " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                                 "%*d %ld %*d %llu %*u %*d %*u %*u %*u %llu",
                                 &stat.state, &stat.threads, &start, &stack);
  constexpr int kGranularity = 4;  // the lowest bits of the address are zeros
  stat.start = start & kTicks;
  if (stack > 1) stat.start |= (stack >> kGranularity | 1) << kTickBits;
  return fields == 4;
}

// Whether the program still runs. It has ended if another one has replaced it in its process
// (execve). The kernel places the stack of each program at a random address, which it may hide.
bool is_same(const ProcessId& process, const Stat& now) {
  if (process.start == 0 || process.start == now.start) return true;
  const bool hidden = process.start <= kTicks || now.start <= kTicks;
  return hidden && (process.start & kTicks) == (now.start & kTicks);
}

bool exists(pid_t pid) { return kill(pid, 0) == 0 || errno == EPERM; }

// Does not open a file. A zombie has no memory and therefore no link to its program, unless only
// its first thread has ended.
bool is_alive_without_descriptor(pid_t pid) {
  if (!exists(pid)) return false;
  const std::string folder = format("/proc/%d", static_cast<int>(pid));
  char program;
  if (readlink((folder + "/exe").c_str(), &program, 1) >= 0 || errno != ENOENT) return true;
  constexpr nlink_t kWithOneThread = 3;
  struct stat threads;
  return stat((folder + "/task").c_str(), &threads) == 0 && threads.st_nlink > kWithOneThread;
}

std::atomic<uint32_t> generation{0};

[[maybe_unused]] const bool fork_is_watched = [] {
  pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  return true;
}();

uint64_t hash(uint64_t seed, std::string_view text) {  // FNV-1a
  for (const char c : text) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return seed;
}

uint64_t hash_namespace(uint64_t seed, const char* path) {
  struct stat info;
  if (stat(path, &info) != 0) return seed;
  return hash(seed, format("%llu:%llu", static_cast<unsigned long long>(info.st_dev),
                           static_cast<unsigned long long>(info.st_ino)));
}

}  // namespace

ProcessId process_of(pid_t pid) {
  Stat stat;
  const bool known = read_stat(pid, stat);
  return {pid, known ? stat.start : 0};
}

ProcessId this_process() { return process_of(getpid()); }

bool is_alive(const ProcessId& process) {
  Stat stat;
  errno = 0;
  if (!read_stat(process.pid, stat)) {
    return errno == EMFILE || errno == ENFILE ? is_alive_without_descriptor(process.pid)
                                              : exists(process.pid);
  }
  if (!is_same(process, stat)) return false;
  // A process whose first thread has ended appears as a zombie while other threads still run.
  return (stat.state != 'Z' && stat.state != 'X') || stat.threads > 1;
}

bool is_alive_after_close(const ProcessId& process) {
  constexpr auto kInterval = std::chrono::milliseconds(5);
  for (int check = 0; check < 20; ++check) {
    if (!is_alive(process)) return false;
    std::this_thread::sleep_for(kInterval);
  }
  return true;
}

uint32_t fork_generation() { return generation.load(std::memory_order_relaxed); }

size_t read_process(pid_t pid, uint64_t address, void* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    iovec local{static_cast<char*>(to) + done, bytes - done};
    iovec remote{reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t read = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) break;
    done += static_cast<size_t>(read);
  }
  return done;
}

std::optional<int> runnable_threads() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::nullopt;
  if (CPU_COUNT(&allowed) != sysconf(_SC_NPROCESSORS_ONLN)) return std::nullopt;
  char buffer[128];
  int threads = 0;
  const bool known = read_file("/proc/loadavg", buffer, sizeof buffer) > 0 &&
                     std::sscanf(buffer, "%*s %*s %*s %d", &threads) == 1 && threads > 0;
  return known ? std::optional(threads) : std::nullopt;
}

uint64_t boot_identity() {
  constexpr char kBoot[] = "/proc/sys/kernel/random/boot_id";
  char boot[64];
  const ssize_t length = read_file(kBoot, boot, sizeof boot);
  if (length < 0 && errno != ENOENT && errno != EACCES) fail_errno("reading %s", kBoot);
  return hash(0xcbf29ce484222325u, {boot, length > 0 ? size_t(length) : 0});
}

uint64_t machine_identity() {
  const uint64_t identity = hash_namespace(boot_identity(), "/proc/self/ns/net");
  return hash_namespace(identity, "/proc/self/ns/pid");
}

}  // namespace hostnccl
