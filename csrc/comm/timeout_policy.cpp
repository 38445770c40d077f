#include "comm/timeout_policy.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace pynccl {

TimeoutPolicy default_policy() {
  const char* text = std::getenv("PYNCCL_ON_TIMEOUT");
  const std::string value = text ? text : "";
  if (value == "abort") return {true, {}, {}};
  if (value.empty() || value == "raise") return {};
  throw std::invalid_argument(std::string("PYNCCL_ON_TIMEOUT: '") + value +
                              "' is neither 'raise' nor 'abort'");
}

void abort_process(const std::string& text) {
  std::fputs((text + "\n").c_str(), stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace pynccl
