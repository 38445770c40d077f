// A thread that waits on a machine with planted yields: another process runs during the first one.
// Prints how often waits spin before they would sleep.
#include <chrono>
#include <iostream>
#include <thread>

#include "hostnccl/base/flag.h"

namespace {
std::chrono::milliseconds yield_time{100};
bool yielded = false;
}  // namespace

extern "C" int sched_yield() noexcept {  // instead of that of the C library
  yielded = true;
  std::this_thread::sleep_for(yield_time);
  return 0;
}

namespace hostnccl {

const char* kernel_isa() { return "baseline"; }  // instead of linking the kernels

namespace {

int spins_before_sleep() {
  SpinBackoff backoff(false);
  int spins = 0;
  while (backoff.wait()) ++spins;
  return spins;
}

// Whether a wait spins, whose condition is met after the first spin.
bool spins_at_first() { return SpinBackoff(false).wait(); }

void print_waits(const char* name) {
  std::cout << name;
  for (int i = 0; i < 100; ++i) std::cout << ' ' << spins_before_sleep();
  std::cout << std::endl;
}

}  // namespace
}  // namespace hostnccl

int main() {
  using namespace hostnccl;
  spins_before_sleep();
  print_waits("missed");
  while (!spins_at_first()) {
  }
  std::cout << "met " << spins_at_first() << ' ' << spins_at_first() << std::endl;
  print_waits("missed_again");
  std::cout << "contended " << cpus_contended() << std::endl;

  yield_time = std::chrono::milliseconds(0);
  while (cpus_contended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  yielded = false;
  SpinBackoff backoff(false);
  int spins = 0;
  while (!yielded && backoff.wait()) ++spins;
  std::cout << "calm " << spins << std::endl;
}
