// Waits of one thread, in planned time: each reading of the clock takes 2 us, a yield as long as
// the program says. Prints how often each wait spins and yields before it would sleep, and its
// microseconds. Then prints the time slice of the thread before and after them, in microseconds.
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <string_view>

#include "hostnccl/base/flag.h"

namespace {
using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

nanoseconds moment = hours(1);
nanoseconds yield_time = microseconds(1);
int yields = 0;
int runnable = 1;
constexpr int kRanks = 4;
}  // namespace

// Instead of those of the C library.
extern "C" int clock_gettime(clockid_t, timespec* now) noexcept {
  moment += microseconds(2);
  now->tv_sec = static_cast<time_t>(moment / seconds(1));
  now->tv_nsec = static_cast<long>((moment % seconds(1)).count());
  return 0;
}

// As if this thread might run on all CPUs.
extern "C" long sysconf(int name) noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return -1;
  return name == _SC_NPROCESSORS_ONLN ? CPU_COUNT(&allowed) : -1;
}

extern "C" int open(const char* path, int flags, ...) {
  if (path != std::string_view("/proc/loadavg")) {
    return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags));
  }
  const int file = memfd_create("loadavg", MFD_CLOEXEC);
  dprintf(file, "0.00 0.00 0.00 %d/1000 1\n", runnable);
  lseek(file, 0, SEEK_SET);
  return file;
}

extern "C" int sched_yield() noexcept {
  ++yields;
  moment += yield_time;
  return 0;
}

namespace hostnccl {

const char* kernel_isa() { return "baseline"; }  // instead of linking the kernels

namespace {

void print_wait(const char* name, bool apart, int ranks = 0) {
  SpinBackoff backoff(ranks);
  int spins = 0;
  yields = 0;
  const nanoseconds began = moment;
  while (backoff.wait([apart] { return apart; })) ++spins;
  const double time = std::chrono::duration<double, std::micro>(moment - began).count();
  std::cout << name << ' ' << spins << ' ' << yields << ' ' << time << std::endl;
}

// A thread that loses its CPU while it spins.
void lose_by_spin(nanoseconds time) {
  SpinBackoff backoff(0);
  yields = 0;
  while (yields == 0) backoff.wait();
  moment += time;
  while (backoff.wait() && !lost_slice_recently()) {
  }
}

// 0 before Linux 6.12.
double slice_us() {
  uint64_t attributes[6] = {};  // struct sched_attr of linux/sched/types.h
  if (syscall(SYS_sched_getattr, 0, attributes, sizeof attributes, 0) != 0) return -1;
  return static_cast<double>(attributes[3]) / 1000;
}

}  // namespace
}  // namespace hostnccl

int main() {
  using namespace hostnccl;
  const double slice_before = slice_us();
  constexpr milliseconds kSlice(20);
  constexpr seconds kCalm(10);
  print_wait("calm", true);
  yield_time = kSlice;
  print_wait("lost_by_yield", false);
  yield_time = microseconds(1);
  print_wait("not_apart", false);
  print_wait("oversubscribed", true, kRanks);
  print_wait("oversubscribed_again", true, kRanks);
  print_wait("apart", true);

  moment += kCalm;
  print_wait("calm_again", false);
  lose_by_spin(kSlice);
  print_wait("lost_by_spin", false);

  moment += kCalm;
  lose_by_spin(hours(1));  // the process was stopped
  moment += seconds(1);
  print_wait("calm_after_a_stop", false);

  constexpr microseconds kCopy(300);
  moment += kCalm;
  yield_time = kCopy;
  print_wait("a_rank_copies", false, kRanks);
  runnable = kRanks + 1;
  print_wait("another_process_runs", false, kRanks);
  runnable = kRanks;
  moment += seconds(1);
  print_wait("it_still_runs", false, kRanks);
  moment += 2 * kCalm;
  print_wait("a_rank_copies_again", false, kRanks);
  std::cout << "slice " << slice_before << ' ' << slice_us() << " 0" << std::endl;
}
