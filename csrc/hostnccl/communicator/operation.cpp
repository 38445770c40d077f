#include "hostnccl/communicator/operation.h"

#include <iterator>

namespace hostnccl {

const char* dtype_name(unsigned dtype) {
  static constexpr const char* kNames[] = {
      "int8",    "uint8",   "int32",   "uint32",   "int64",       "uint64",
      "float16", "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2",
  };
  static_assert(std::size(kNames) == abi::ncclNumTypes);
  return dtype < abi::ncclNumTypes ? kNames[dtype] : "unknown type";
}

Descriptor describe(const Operation& operation) {
  Descriptor call{};
  call.count = operation.count;
  call.send = reinterpret_cast<uint64_t>(operation.send);
  call.recv = reinterpret_cast<uint64_t>(operation.recv);
  call.scalar = operation.multiplier.from == Multiplier::From::Address
                    ? load_scalar(operation.multiplier.address, operation.dtype)
                    : operation.multiplier.value;
  call.root = operation.root_or_peer;
  call.kind = static_cast<uint8_t>(operation.kind);
  call.dtype = static_cast<uint8_t>(operation.dtype);
  call.reduce = static_cast<uint8_t>(operation.reduce);
  call.multiplies = operation.multiplier.from != Multiplier::From::None;
  call.path = static_cast<uint8_t>(operation.path);
  call.tag = operation.tag;
  return call;
}

bool same_call(const Descriptor& a, const Descriptor& b) {
  return a.count == b.count && a.root == b.root && a.kind == b.kind && a.dtype == b.dtype &&
         a.reduce == b.reduce && a.multiplies == b.multiplies && a.path == b.path;
}

std::string to_text(const Descriptor& call) {
  static constexpr const char* kReductions[] = {"sum", "prod", "max", "min", "avg"};
  const Kind kind = static_cast<Kind>(call.kind);
  const CollectiveTraits& traits = traits_of(kind);
  if (kind >= Kind::Split && is_collective(kind)) return std::string(traits.name) + "()";
  std::string text = format("%s(count=%llu, %s", traits.name,
                            static_cast<unsigned long long>(call.count), dtype_name(call.dtype));
  if (traits.reduces) {
    text += format(", %s", call.multiplies ? "premulsum" : kReductions[call.reduce]);
  }
  if (traits.has_root()) text += format(", root=%d", call.root);
  const Path path = static_cast<Path>(call.path);
  if (path != Path::Any) text += path == Path::Staged ? ", staged" : ", direct";
  if (call.tag != 0) text += format(", tag=%#llx", static_cast<unsigned long long>(call.tag));
  return text + ")";
}

std::string to_text(const Operation& operation) {
  Operation call = operation;
  call.multiplier = {};  // the memory at its address may have been freed
  return to_text(describe(call));
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() > 1 ? "ranks " : "rank ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ";
    text += before + std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace hostnccl
