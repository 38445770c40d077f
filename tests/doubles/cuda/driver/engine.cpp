#include "driver/engine.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace cuda_double {
namespace {

std::string engine_path() {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&engine), &info);
  const std::string own = info.dli_fname;
  return own.substr(0, own.rfind('/') + 1) + "libengine.so";
}

Engine load() {
  Engine engine;
  engine.handle = dlopen(engine_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* missing = engine.handle ? nullptr : dlerror();
  if (engine.handle) {
#define FUNCTION(symbol, result, name, ...)                                                  \
  engine.name = reinterpret_cast<decltype(engine.name)>(dlsym(engine.handle, "host" #name)); \
  if (!engine.name) missing = "no host" #name;
#include "abi/c_params.inc"
#include "abi/driver_functions.inc"
#include "abi/undef.inc"
  }
  if (missing) {
    std::fprintf(stderr, "CUDA double: %s: %s\n", engine_path().c_str(), missing);
    std::abort();
  }
  return engine;
}

}  // namespace

const Engine& engine() {
  static const Engine loaded = load();
  return loaded;
}

}  // namespace cuda_double
