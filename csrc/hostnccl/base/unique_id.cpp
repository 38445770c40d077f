#include "hostnccl/base/unique_id.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "hostnccl/base/error.h"
#include "hostnccl/base/process.h"
#include "hostnccl/base/sha256.h"

namespace hostnccl {
namespace {

constexpr char kMagic[8] = {'h', 'o', 's', 't', 'n', 'c', 'c', 'l'};
constexpr uint32_t kFormat = 2;

const char* function_of(Purpose purpose) {
  return purpose == Purpose::Grow ? "ncclCommGetUniqueId" : "ncclGetUniqueId";
}

}  // namespace

RendezvousName random_name() {
  RendezvousName name;
  if (getrandom(name.data(), name.size(), 0) != ssize_t(name.size())) fail_errno("getrandom");
  return name;
}

abi::ncclUniqueId make_unique_id(Purpose purpose) {
  UniqueId id{};
  std::memcpy(id.magic, kMagic, sizeof kMagic);
  id.version = kFormat;
  id.purpose = static_cast<uint32_t>(purpose);
  id.machine = machine_identity();
  id.name = random_name();
  if (purpose == Purpose::Grow) id.creator = this_process();
  abi::ncclUniqueId out{};
  std::memcpy(out.internal, &id, sizeof id);
  return out;
}

UniqueId read_unique_id(const abi::ncclUniqueId& given, Purpose purpose, const char* argument) {
  UniqueId id;
  std::memcpy(&id, given.internal, sizeof id);
  if (std::memcmp(id.magic, kMagic, sizeof kMagic) != 0) {
    fail(abi::ncclInvalidArgument,
         "%s was not made by hostnccl's %s: every rank must use the same library", argument,
         function_of(purpose));
  }
  if (id.version != kFormat) {
    fail(abi::ncclInvalidArgument,
         "%s has format %u, this hostnccl has format %u: every rank must use the same version",
         argument, id.version, kFormat);
  }
  if (id.machine != machine_identity()) {
    fail(abi::ncclInvalidArgument,
         "%s comes from another machine or container (another boot, network namespace or pid "
         "namespace): hostnccl works within one machine, across machines use NCCL",
         argument);
  }
  if (id.purpose != static_cast<uint32_t>(purpose)) {
    fail(abi::ncclInvalidArgument, "%s was made by %s, here it must come from %s", argument,
         function_of(static_cast<Purpose>(id.purpose)), function_of(purpose));
  }
  return id;
}

RendezvousName rendezvous_name(const abi::ncclUniqueId& given) {
  return read_unique_id(given, Purpose::Init, "commId").name;
}

RendezvousName derived_name(const RendezvousName& from, const std::string& text) {
  Sha256 hash;
  hash.add(from.data(), from.size());
  hash.add(text);
  const Sha256::Digest digest = hash.finish();
  RendezvousName name;
  std::copy_n(digest.begin(), name.size(), name.begin());
  return name;
}

std::string to_hex(const RendezvousName& name) {
  std::string text;
  for (const uint8_t byte : name) text += format("%02x", byte);
  return text;
}

}  // namespace hostnccl
