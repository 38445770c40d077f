#include "tensors.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <pynccl/overlap.h>

#include <string_view>
#include <utility>

namespace pynccl::dist {
namespace {

using at::ScalarType;

// Returns the ncclDataType_t of a dtype, negative if NCCL has none.
int nccl_dtype(ScalarType type) {
  switch (type) {
    case ScalarType::Char:
      return 0;
    case ScalarType::Byte:
    case ScalarType::Bool:
      return 1;
    case ScalarType::Int:
      return 2;
    case ScalarType::UInt32:
      return 3;
    case ScalarType::Long:
      return 4;
    case ScalarType::UInt64:
      return 5;
    case ScalarType::Half:
      return 6;
    case ScalarType::Float:
      return 7;
    case ScalarType::Double:
      return 8;
    case ScalarType::BFloat16:
      return 9;
    case ScalarType::Float8_e4m3fn:
      return 10;
    case ScalarType::Float8_e5m2:
      return 11;
    default:
      return -1;
  }
}

constexpr int kBytes = 1;    // ncclUint8
constexpr int kFloat8 = 10;  // the first type that a library may lack

struct ArgumentNames {
  std::string_view output, input;
};

// Returns the argument names of an operation.
ArgumentNames argument_names(std::string_view operation) {
  constexpr std::pair<std::string_view, ArgumentNames> kNames[] = {
      {"all_gather", {"tensor_list", "tensor"}},
      {"_all_gather_base", {"output_tensor", "input_tensor"}},
      {"all_reduce_coalesced", {"tensors", "tensors"}},
      {"all_to_all", {"output_tensor_list", "input_tensor_list"}},
      {"all_to_all_single", {"output", "input"}},
      {"gather", {"gather_list", "tensor"}},
      {"gather_single", {"gather_tensor", "tensor"}},
      {"reduce_scatter", {"output", "input_list"}},
      {"_reduce_scatter_base", {"output", "input"}},
      {"scatter", {"tensor", "scatter_list"}},
  };
  for (const auto& [name, names] : kNames)
    if (name == operation) return names;
  return {"an output", "an input"};
}

bool has_complex(const at::Tensor& tensor) { return at::isComplexType(tensor.scalar_type()); }

std::size_t elements_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

}  // namespace

at::Device with_index(const at::Device& device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

void check_tensor(const char* name, const at::Tensor& tensor, const at::Device& device) {
  TORCH_CHECK_VALUE(tensor.defined(), name, ": expected a tensor, got none");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, name, ": expected a dense tensor, got one of ",
                    tensor.layout(), " layout");
  TORCH_CHECK_VALUE(tensor.device() == device, name, ": it is on ", tensor.device(),
                    ", but other tensors of the operation are on ", device);
  TORCH_CHECK_VALUE(tensor.is_contiguous(tensor.suggest_memory_format()), name,
                    ": it is not contiguous: sizes ", tensor.sizes(), ", strides ",
                    tensor.strides());
}

void check_tensors(const char* name, const std::vector<at::Tensor>& tensors,
                   const at::Device& device) {
  for (const at::Tensor& tensor : tensors) check_tensor(name, tensor, device);
}

void check_same_dtype(const char* name, const at::Tensor& tensor, const at::Tensor& other) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == other.scalar_type(), name, ": it has dtype ",
                   tensor.scalar_type(), ", but other tensors of the operation have ",
                   other.scalar_type());
}

void check_same_layout(const char* name, const at::Tensor& tensor, const at::Tensor& other) {
  check_same_dtype(name, tensor, other);
  if (tensor.dim() != other.dim() || (tensor.is_contiguous() && other.is_contiguous())) return;
  const auto are = [&](at::MemoryFormat format) {
    return tensor.is_contiguous(format) && other.is_contiguous(format);
  };
  TORCH_CHECK_VALUE(are(at::MemoryFormat::ChannelsLast) || are(at::MemoryFormat::ChannelsLast3d),
                    name, ": it has strides ", tensor.strides(),
                    ", but other tensors of the operation have ", other.strides(),
                    "; all must be contiguous, or all channels-last");
}

void check_length(const char* name, std::size_t length, std::size_t expected) {
  TORCH_CHECK_VALUE(length == expected, name, ": expected ", expected,
                    " tensors, one for each rank, got ", length);
}

void check_count(const char* name, const at::Tensor& tensor, std::int64_t expected) {
  TORCH_CHECK_VALUE(tensor.numel() == expected, name, ": expected ", expected, " elements, got ",
                    tensor.numel());
}

at::Tensor& only(const char* name, std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, name, ": expected one tensor, got ", tensors.size());
  return tensors.front();
}

void check_overlap(const Operation& operation, int rank, int size) {
  const auto memory = [&](const PyncclOperation& call) {
    return memory_of(call.kind, call.sendbuff, call.recvbuff,
                     call.count * abi::element_size(static_cast<abi::ncclDataType_t>(call.dtype)),
                     call.root_or_peer, rank, size);
  };
  if (operation.calls.size() == 1) {
    const OperationMemory one = memory(operation.calls.front());
    if (!one.reads || !one.writes || one.is_defined()) [[likely]]
      return;
  }
  OverlapSearch search;
  search.reserve(operation.calls.size());
  for (const PyncclOperation& call : operation.calls)
    search.add(memory(call), call.kind, nullptr, call.root_or_peer == rank);
  const auto overlap = search.find();
  if (!overlap) [[likely]]
    return;
  const auto [output, input] = argument_names(name_of(operation));
  TORCH_CHECK_VALUE(!overlap->other_writes, output, ": output tensors of ", name_of(operation),
                    " overlap each other");
  C10_THROW_ERROR(ValueError, c10::str(output, ": it overlaps ", input,
                                       "; only the in-place position or separate memory is "
                                       "allowed"));
}

Elements moved(const at::Tensor& tensor) {
  const int dtype = nccl_dtype(tensor.scalar_type());
  if (dtype < 0 || dtype >= kFloat8) return {kBytes, elements_of(tensor) * tensor.element_size()};
  return {dtype, elements_of(tensor)};
}

Elements reduced(const char* name, const at::Tensor& tensor) {
  const int dtype = nccl_dtype(has_complex(tensor) ? c10::toRealValueType(tensor.scalar_type())
                                                   : tensor.scalar_type());
  TORCH_CHECK_TYPE(dtype >= 0, name, ": NCCL cannot reduce dtype ", tensor.scalar_type());
  return {dtype, elements_of(tensor) * (has_complex(tensor) ? 2 : 1)};
}

Reduction reduction(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  using c10d::ReduceOp;
  const bool boolean = tensor.scalar_type() == ScalarType::Bool;
  TORCH_CHECK_VALUE(!has_complex(tensor) || op.op_ == ReduceOp::SUM || op.op_ == ReduceOp::AVG ||
                        op.op_ == ReduceOp::PREMUL_SUM,
                    "op: complex tensors can be reduced by SUM, AVG and PREMUL_SUM only");
  switch (op.op_) {
    case ReduceOp::SUM:
      return {static_cast<int>(boolean ? types::ncclMax : types::ncclSum), {}};  // logical or
    case ReduceOp::PRODUCT:
      return {static_cast<int>(boolean ? types::ncclMin : types::ncclProd), {}};  // logical and
    case ReduceOp::MIN:
      return {types::ncclMin, {}};
    case ReduceOp::MAX:
      return {types::ncclMax, {}};
    case ReduceOp::AVG:
      TORCH_CHECK_TYPE(!boolean, "op: Cannot use ReduceOp.AVG with Boolean inputs");
      return {types::ncclAvg, {}};
    case ReduceOp::PREMUL_SUM: {
      TORCH_CHECK_TYPE(!boolean, "op: Cannot use ReduceOp.PREMUL_SUM with Boolean inputs");
      const auto* factor = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(factor, "op: ReduceOp.PREMUL_SUM needs a factor");
      const auto real =
          has_complex(tensor) ? c10::toRealValueType(tensor.scalar_type()) : tensor.scalar_type();
      const at::Tensor value =
          factor->tensor_factor.defined()
              ? factor->tensor_factor.to(tensor.device(), real)
              : at::scalar_tensor(factor->double_factor, at::TensorOptions().dtype(real));
      return {0, Factor{value, nccl_dtype(real)}};
    }
    default:
      break;
  }
  C10_THROW_ERROR(ValueError, c10::str("op: Cannot use ReduceOp.",
                                       op.op_ == ReduceOp::BAND   ? "BAND"
                                       : op.op_ == ReduceOp::BOR  ? "BOR"
                                       : op.op_ == ReduceOp::BXOR ? "BXOR"
                                                                  : "UNUSED",
                                       " with NCCL: it has no bitwise operators"));
}

}  // namespace pynccl::dist
