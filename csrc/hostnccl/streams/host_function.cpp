#include "hostnccl/streams/host_function.h"

#include <optional>
#include <utility>

namespace hostnccl {
namespace {

thread_local std::optional<Error> function_failure;

}  // namespace

void run_function(abi::CUhostFn function, void* data) {
  function_failure.reset();
  function(data);
  if (const auto failure = std::exchange(function_failure, std::nullopt)) throw Error(*failure);
}

void fail_function(Error error) {
  if (!function_failure) function_failure = std::move(error);
}

}  // namespace hostnccl
