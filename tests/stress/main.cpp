// hostnccl under stress, with ranks as threads of one process and only the C API: run under the
// sanitizers by run.py. Each scenario runs with direct reads and with all data staged.
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
      {"streams", stress::streams},         {"lives", stress::lives},
      {"configured", stress::configured},   {"regroup", stress::regroup},
      {"windows", stress::windows},         {"graphs", stress::graphs},
  };
  setenv("HOSTNCCL_INIT_TIMEOUT", "60", 1);
  // First, for it forks. What ranks do beside others in their process is in the scenarios.
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
