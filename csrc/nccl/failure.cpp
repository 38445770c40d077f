#include "nccl/failure.h"

#include <cstring>

namespace pynccl {
namespace {

// The last path component: a message names the source file, not the build folder.
const char* basename(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

}  // namespace

std::string place_text(const char* file, int line, const char* function) {
  const std::string within = function ? std::string(function) + ", " : std::string();
  return " [" + within + basename(file) + ":" + std::to_string(line) + "]";
}

DriverFailure driver_failure(const DriverTable& driver, CUresult result, const char* function,
                             const char* file, int line) {
  std::string text = std::string(function) + " failed";
  const char* name = nullptr;
  const char* meaning = nullptr;
  if (driver.GetErrorName(result, &name) == CUDA_SUCCESS && name) text += std::string(": ") + name;
  if (driver.GetErrorString(result, &meaning) == CUDA_SUCCESS && meaning)
    text += std::string(" (") + meaning + ")";
  return {result, function, text + place_text(file, line)};
}

}  // namespace pynccl
