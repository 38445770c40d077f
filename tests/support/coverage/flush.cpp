// Linked into each instrumented library: registers the function that writes its counts with
// at_exit.c.
#include <dlfcn.h>

extern "C" void __gcov_dump();

namespace {

[[gnu::constructor]] void announce() {
  using Register = void (*)(void (*)());
  void* found = dlsym(RTLD_DEFAULT, "pynccl_coverage_register");
  if (found != nullptr) reinterpret_cast<Register>(found)(&__gcov_dump);
}

}  // namespace
