// Linked into each instrumented library: tells at_exit.c how to write the library's counts.
#include <dlfcn.h>

extern "C" void __gcov_dump();

namespace {

[[gnu::constructor]] void announce() {
  using Register = void (*)(void (*)());
  void* found = dlsym(RTLD_DEFAULT, "pynccl_coverage_register");
  if (found != nullptr) reinterpret_cast<Register>(found)(&__gcov_dump);
}

}  // namespace
