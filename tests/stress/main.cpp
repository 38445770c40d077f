// Stress program of hostnccl: random programs over the C API, with ranks as threads of one process.
// run.py builds and runs it under the sanitizers. Each scenario runs twice: with reads of other
// processes' memory allowed, and without (HOSTNCCL_CMA=0).
//
//     stress [SCENARIO]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "stress.h"

int main(int argc, char** argv) {
  const struct {
    const char* name;
    void (*run)();
  } scenarios[] = {
      {"collectives", stress::collectives}, {"messages", stress::messages},
      {"streams", stress::streams},         {"lifecycle", stress::lifecycle},
      {"configured", stress::configured},   {"derive", stress::derive},
      {"windows", stress::windows},         {"graphs", stress::graphs},
      {"deadlocks", stress::deadlocks},
  };
  setenv("HOSTNCCL_INIT_TIMEOUT", "60", 1);
  setenv("HOSTNCCL_DEADLOCK_MS", "100", 1);  // so that the detection runs often
  // First, because it forks, and the process has no other thread yet.
  if (argc == 1 || std::strcmp(argv[1], "windows") == 0) stress::windows_of_processes();
  for (const char* direct : {"1", "0"}) {
    setenv("HOSTNCCL_CMA", direct, 1);
    for (const auto& scenario : scenarios) {
      if (argc > 1 && std::strcmp(argv[1], scenario.name) != 0) continue;
      const auto start = std::chrono::steady_clock::now();
      scenario.run();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      std::printf("%-12s HOSTNCCL_CMA=%s  %5.1f s\n", scenario.name, direct, took.count());
      std::fflush(stdout);
    }
  }
  return 0;
}
