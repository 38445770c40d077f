// Collectives with a ncclCollConfig_t: the nccl...Config functions, NCCL 2.31 and newer.
#include "core/communicator.h"

namespace pynccl {
namespace {

// Calls visit.operator()<entry>(name, arguments between dtype and comm) for the function of an
// operation's kind.
template <class Visit>
void visit_entry(const Operation& o, Visit&& visit) {
#define ENTRY(name, ...) \
  visit.template operator()<&NcclTable::name>(#name __VA_OPT__(, ) __VA_ARGS__)
  switch (plain(o.kind)) {
    case OperationKind::kAllReduce:
      return ENTRY(ncclAllReduceConfig, o.op);
    case OperationKind::kBroadcast:
      return ENTRY(ncclBroadcastConfig, o.root_or_peer);
    case OperationKind::kReduce:
      return ENTRY(ncclReduceConfig, o.op, o.root_or_peer);
    case OperationKind::kAllGather:
      return ENTRY(ncclAllGatherConfig);
    case OperationKind::kReduceScatter:
      return ENTRY(ncclReduceScatterConfig, o.op);
    case OperationKind::kAllToAll:
      return ENTRY(ncclAlltoAllConfig);
    case OperationKind::kGather:
      return ENTRY(ncclGatherConfig, o.root_or_peer);
    case OperationKind::kScatter:
      return ENTRY(ncclScatterConfig, o.root_or_peer);
    default:
      throw std::invalid_argument("config: send and recv take none");
  }
#undef ENTRY
}

}  // namespace

void Communicator::check_configured(const Operation& o) const {
  visit_entry(o, [this]<auto Entry>(const char*, auto...) { library_->nccl<Entry>(); });
  library_->fit(*o.config);
}

void Communicator::issue_configured(const Operation& o) {
  const ncclComm_t comm = handle();
  const ncclCollConfig_t config = library_->fit(*o.config);
  visit_entry(o, [&]<auto Entry>(const char* name, auto... between) {
    const auto function = library_->nccl<Entry>();
    check_operation(
        function(o.sendbuff, o.recvbuff, o.count, o.dtype, between..., comm, o.stream, &config),
        name);
  });
}

}  // namespace pynccl
