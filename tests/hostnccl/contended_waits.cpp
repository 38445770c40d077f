// Waits of one thread, in which yields last as long as planned. Prints how often each spins and
// yields before it would sleep.
#include <chrono>
#include <iostream>
#include <thread>

#include "hostnccl/base/flag.h"

namespace {
constexpr std::chrono::milliseconds kSlice{20};
std::chrono::milliseconds yield_time{0};
int yields = 0;
}  // namespace

extern "C" int sched_yield() noexcept {  // instead of that of the C library
  ++yields;
  std::this_thread::sleep_for(yield_time);
  return 0;
}

namespace hostnccl {

const char* kernel_isa() { return "baseline"; }  // instead of linking the kernels

namespace {

void print_wait(const char* name, Placement placement, bool oversubscribed = false) {
  SpinBackoff backoff(oversubscribed);
  int spins = 0;
  yields = 0;
  const auto began = Clock::now();
  while (backoff.wait([placement] { return placement; })) ++spins;
  const std::chrono::duration<double> time = Clock::now() - began;
  std::cout << name << ' ' << spins << ' ' << yields << ' ' << time.count() << std::endl;
}

void await_calm() {
  while (cpus_contended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A thread that loses its CPU while it spins.
void lose_by_spin() {
  SpinBackoff backoff(false);
  while (!cpus_contended()) {
    std::this_thread::sleep_for(kSlice / 64);
    backoff.wait();
  }
}

}  // namespace
}  // namespace hostnccl

int main() {
  using namespace hostnccl;
  print_wait("calm", Placement::Apart);
  yield_time = kSlice;
  print_wait("lost_by_yield", Placement::Together);
  print_wait("unknown", Placement::Unknown);
  print_wait("together", Placement::Together);
  print_wait("apart", Placement::Apart);
  print_wait("oversubscribed", Placement::Apart, true);

  yield_time = std::chrono::milliseconds(0);
  await_calm();
  print_wait("calm_again", Placement::Together);
  lose_by_spin();
  print_wait("lost_by_spin_unknown", Placement::Unknown);
  print_wait("lost_by_spin_together", Placement::Together);
  yield_time = kSlice;
  print_wait("lost_by_both_together", Placement::Together);
}
