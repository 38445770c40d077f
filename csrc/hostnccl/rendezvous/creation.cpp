#include "hostnccl/rendezvous/creation.h"

#include "hostnccl/base/interrupt.h"
#include "hostnccl/base/params.h"

namespace hostnccl {
namespace {

thread_local std::optional<Creation::Seconds> limit_of_thread;

const char* text_of(Creation::End how) {
  switch (how) {
    case Creation::End::Aborted:
      return "aborted the communicator while it was being created";
    case Creation::End::ParentAborted:
      return "aborted its communicator while another was derived from it";
    case Creation::End::ParentRevoked:
      return "revoked its communicator while another was derived from it";
    default:
      return kInterruption;
  }
}

}  // namespace

void Creation::set_limit(std::optional<Seconds> limit) { limit_of_thread = limit; }

Creation::Creation()
    : limit_(limit_of_thread ? *limit_of_thread
                             : std::chrono::seconds(param_number(ParamId::InitTimeout))) {}

std::optional<Error> Creation::given_up() const {
  if (auto reason = ended()) return reason;
  if (!late()) return std::nullopt;
  return Error(abi::ncclTimeout, format("gave up after %g s", limit()));
}

std::optional<Error> Creation::ended() const {
  End how = end_.load(std::memory_order_relaxed);
  if (how == End::None && interrupted()) how = End::Interrupted;
  if (how == End::None) return std::nullopt;
  return Error(abi::ncclRemoteError, text_of(how));
}

}  // namespace hostnccl
