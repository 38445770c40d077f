#include "hostnccl/unique_id.h"

#include <sys/random.h>

#include <cstring>

#include "hostnccl/error.h"
#include "hostnccl/process.h"

namespace hostnccl {
namespace {

constexpr char kMagic[8] = {'h', 'o', 's', 't', 'n', 'c', 'c', 'l'};
constexpr uint32_t kFormat = 1;

}  // namespace

abi::ncclUniqueId make_unique_id() {
  UniqueId id{};
  std::memcpy(id.magic, kMagic, sizeof kMagic);
  id.version = kFormat;
  id.machine = machine_identity();
  if (getrandom(id.name.data(), id.name.size(), 0) != ssize_t(id.name.size())) {
    fail_errno("getrandom");
  }
  abi::ncclUniqueId out{};
  std::memcpy(out.internal, &id, sizeof id);
  return out;
}

MeetingName meeting_name(const abi::ncclUniqueId& given) {
  UniqueId id;
  std::memcpy(&id, given.internal, sizeof id);
  if (std::memcmp(id.magic, kMagic, sizeof kMagic) != 0) {
    fail(abi::ncclInvalidArgument,
         "commId was not made by hostnccl's ncclGetUniqueId: every rank must use the same library");
  }
  if (id.version != kFormat) {
    fail(abi::ncclInvalidArgument,
         "commId has format %u, this hostnccl has format %u: every rank must use the same version",
         id.version, kFormat);
  }
  if (id.machine != machine_identity()) {
    fail(abi::ncclInvalidArgument,
         "commId comes from another machine or container (another boot, network namespace or pid "
         "namespace): hostnccl works within one machine, across machines use NCCL");
  }
  return id.name;
}

std::string to_hex(const MeetingName& name) {
  std::string text;
  for (const uint8_t byte : name) text += format("%02x", byte);
  return text;
}

}  // namespace hostnccl
