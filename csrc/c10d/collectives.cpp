// The backend's operations. Each checks its arguments and issues one NCCL call or, for lists of
// tensors, a group of calls directly on the user's tensors.
#include <numeric>

#include "backend.h"
#include "tensors.h"

namespace pynccl::dist {
namespace {

using c10d::OpType;

PyncclOperation call(PyncclOperationKind kind, const void* send, void* receive, Elements elements,
                     int op = 0, int root_or_peer = 0) {
  return {kind, elements.dtype, op, root_or_peer, send, receive, elements.count, nullptr};
}

PyncclOperation send_to(int peer, const at::Tensor& tensor) {
  return call(PYNCCL_SEND, tensor.const_data_ptr(), nullptr, moved(tensor), 0, peer);
}

PyncclOperation receive_from(int peer, const at::Tensor& tensor) {
  return call(PYNCCL_RECV, nullptr, tensor.data_ptr(), moved(tensor), 0, peer);
}

Operation create_operation(OpType type, const char* title, Tensors tensors, Tensors outputs) {
  Operation operation;
  operation.type = type;
  operation.title = title;
  operation.tensors = std::move(tensors);
  operation.outputs = std::move(outputs);
  return operation;
}

template <class Options>
Operation create_operation(OpType type, const char* title, const Options& options, Tensors tensors,
                           Tensors outputs) {
  auto operation = create_operation(type, title, std::move(tensors), std::move(outputs));
  operation.async = options.asyncOp;
  operation.timeout = options.timeout;
  return operation;
}

// Sets the factor of the reduction, if any, for all calls of the operation.
void set_factor(Operation& operation, std::optional<Factor> factor) {
  if (!factor) return;
  factor->end = operation.calls.size();
  operation.factors.push_back(std::move(*factor));
}

// Returns the only list, as each process uses one device.
Tensors& only_list(const char* name, std::vector<Tensors>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, name, ": expected one list of tensors, got ", lists.size());
  return lists.front();
}

void check_list(const char* name, const Tensors& list, int size, const at::Tensor& other) {
  check_length(name, list.size(), static_cast<std::size_t>(size));
  check_tensors(name, list, other.device());
  for (const at::Tensor& tensor : list) check_same_layout(name, tensor, other);
}

void check_pairs(const Tensors& outputs, const Tensors& inputs) {
  TORCH_CHECK_VALUE(!inputs.empty(), "inputs: expected at least one tensor");
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "outputs: expected ", inputs.size(),
                    " tensors, one for each input, got ", outputs.size());
}

bool have_one_size(const Tensors& list) {
  const auto same = [&](const at::Tensor& one) { return one.numel() == list.front().numel(); };
  return list.size() > 1 && std::all_of(list.begin(), list.end(), same);
}

// The offsets and sizes in elements of the parts of a tensor along its first dimension.
struct Parts {
  std::vector<std::int64_t> sizes, offsets;
};

Parts parts_of(const char* name, const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
               int size) {
  const std::int64_t length = tensor.dim() == 0 ? 1 : tensor.size(0);
  std::vector<std::int64_t> sizes = splits;
  if (sizes.empty()) {
    TORCH_CHECK_VALUE(length % size == 0, name, ": its first dimension, ", length,
                      ", is not divisible by the ", size, " ranks");
    sizes.assign(static_cast<std::size_t>(size), length / size);
  }
  check_length(name, sizes.size(), static_cast<std::size_t>(size));
  const std::int64_t sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  TORCH_CHECK_VALUE(sum == length && *std::min_element(sizes.begin(), sizes.end()) >= 0, name,
                    ": the split sizes must add up to its first dimension, ", length, "; they are ",
                    sizes);
  const std::int64_t row = length == 0 ? 0 : tensor.numel() / length;
  Parts parts;
  std::int64_t offset = 0;
  for (const std::int64_t split : sizes) {
    parts.sizes.push_back(split * row);
    parts.offsets.push_back(offset);
    offset += split * row;
  }
  return parts;
}

// Returns NCCL's dtype and count for a part of a tensor.
Elements part(const at::Tensor& tensor, std::int64_t size) {
  Elements elements = moved(tensor);
  const std::int64_t all = tensor.numel();
  elements.count =
      all == 0 ? 0
               : elements.count / static_cast<std::size_t>(all) * static_cast<std::size_t>(size);
  return elements;
}

char* at_element(const at::Tensor& tensor, std::int64_t offset) {
  return static_cast<char*>(tensor.data_ptr()) +
         offset * static_cast<std::int64_t>(tensor.element_size());
}

}  // namespace

int PyncclBackend::checked_root(const char* name, std::int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, name, ": the group has ranks 0 to ", size_ - 1,
                    ", got ", root);
  return static_cast<int>(root);
}

WorkPtr PyncclBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  at::Tensor& tensor = only("tensor", tensors);
  check_tensor("tensor", tensor, tensor.device());
  const int root = checked_root("src", options.rootRank);
  auto operation = create_operation(OpType::BROADCAST, "pynccl:broadcast", options, {}, {tensor});
  operation.calls.push_back(
      call(PYNCCL_BROADCAST, tensor.data_ptr(), tensor.data_ptr(), moved(tensor), 0, root));
  return issue(tensor.device(), std::move(operation));
}

WorkPtr PyncclBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor& tensor = only("tensor", tensors);
  check_tensor("tensor", tensor, tensor.device());
  auto operation = create_operation(OpType::ALLREDUCE, "pynccl:all_reduce", options, {}, {tensor});
  Reduction by = reduction(options.reduceOp, tensor);
  operation.calls.push_back(call(PYNCCL_ALL_REDUCE, tensor.data_ptr(), tensor.data_ptr(),
                                 reduced("tensor", tensor), by.op));
  set_factor(operation, std::move(by.factor));
  return issue(tensor.device(), std::move(operation));
}

WorkPtr PyncclBackend::allreduce_coalesced(Tensors& tensors,
                                           const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "tensors: expected at least one tensor");
  const at::Tensor& first = tensors.front();
  auto operation = create_operation(OpType::ALLREDUCE_COALESCED, "pynccl:all_reduce_coalesced",
                                    options, {}, tensors);
  std::optional<Factor> factor = reduction(options.reduceOp, first).factor;
  for (const at::Tensor& tensor : tensors) {
    check_tensor("tensors", tensor, first.device());
    if (factor) check_same_dtype("tensors", tensor, first);
    operation.calls.push_back(call(PYNCCL_ALL_REDUCE, tensor.data_ptr(), tensor.data_ptr(),
                                   reduced("tensors", tensor),
                                   reduction(options.reduceOp, tensor).op));
  }
  set_factor(operation, std::move(factor));
  return issue(first.device(), std::move(operation));
}

WorkPtr PyncclBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  at::Tensor& tensor = only("tensor", tensors);
  check_tensor("tensor", tensor, tensor.device());
  const int root = checked_root("dst", options.rootRank);
  auto operation = create_operation(OpType::REDUCE, "pynccl:reduce", options, {}, {tensor});
  Reduction by = reduction(options.reduceOp, tensor);
  operation.calls.push_back(call(PYNCCL_REDUCE, tensor.data_ptr(), tensor.data_ptr(),
                                 reduced("tensor", tensor), by.op, root));
  set_factor(operation, std::move(by.factor));
  return issue(tensor.device(), std::move(operation));
}

// Issued as a broadcast from each rank into its output; on accelerators as one all-gather if all
// have one size.
WorkPtr PyncclBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& options) {
  Tensors& list = only_list("tensor_list", outputs);
  only("tensor", inputs);
  check_length("tensor_list", list.size(), static_cast<std::size_t>(size_));
  std::vector<Tensors> by_rank;
  for (const at::Tensor& output : list) by_rank.push_back({output});
  return allgather_coalesced(by_rank, inputs, options);
}

// outputs: for each rank, a list with one tensor per input.
WorkPtr PyncclBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty(), "tensor: expected at least one tensor");
  TORCH_CHECK_VALUE(outputs.size() == static_cast<std::size_t>(size_), "tensor_list: expected ",
                    size_, " lists, one for each rank, got ", outputs.size());
  const at::Device device = inputs.front().device();
  check_tensors("tensor", inputs, device);
  auto operation = create_operation(OpType::ALLGATHER, "pynccl:all_gather", options, inputs, {});
  for (int root = 0; root < size_; ++root) {
    const Tensors& list = outputs[static_cast<std::size_t>(root)];
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "tensor_list: expected ", inputs.size(),
                      " tensors, one for each input, got ", list.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor& output = list[i];
      check_tensor("tensor_list", output, device);
      check_same_layout("tensor_list", output, inputs[i]);
      if (root == rank_) check_count("tensor_list", output, inputs[i].numel());
      const void* sent = root == rank_ ? inputs[i].const_data_ptr() : output.const_data_ptr();
      operation.calls.push_back(
          call(PYNCCL_BROADCAST, sent, output.data_ptr(), moved(output), 0, root));
      operation.outputs.push_back(output);
    }
  }
  if (inputs.size() == 1 && have_one_size(operation.outputs))
    operation.equal_parts = EqualParts::kOutputs;
  return issue(device, std::move(operation));
}

WorkPtr PyncclBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkPtr PyncclBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllgatherOptions& options) {
  check_pairs(outputs, inputs);
  const at::Device device = inputs.front().device();
  auto operation = create_operation(OpType::_ALLGATHER_BASE, "pynccl:_all_gather_base", options,
                                    inputs, outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_tensor("input_tensor", inputs[i], device);
    check_tensor("output_tensor", outputs[i], device);
    check_same_layout("output_tensor", outputs[i], inputs[i]);
    check_count("output_tensor", outputs[i], inputs[i].numel() * size_);
    operation.calls.push_back(call(PYNCCL_ALL_GATHER, inputs[i].const_data_ptr(),
                                   outputs[i].data_ptr(), moved(inputs[i])));
  }
  return issue(device, std::move(operation));
}

// Issued as a reduction to each rank; on accelerators as one reduce-scatter if all have one size.
WorkPtr PyncclBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ReduceScatterOptions& options) {
  at::Tensor& output = only("output", outputs);
  Tensors& list = only_list("input_list", inputs);
  check_tensor("output", output, output.device());
  check_list("input_list", list, size_, output);
  check_count("input_list", list[static_cast<std::size_t>(rank_)], output.numel());
  auto operation =
      create_operation(OpType::REDUCE_SCATTER, "pynccl:reduce_scatter", options, list, {output});
  Reduction by = reduction(options.reduceOp, output);
  for (int root = 0; root < size_; ++root) {
    const at::Tensor& input = list[static_cast<std::size_t>(root)];
    operation.calls.push_back(call(PYNCCL_REDUCE, input.const_data_ptr(),
                                   root == rank_ ? output.data_ptr() : nullptr,
                                   reduced("input_list", input), by.op, root));
  }
  set_factor(operation, std::move(by.factor));
  if (have_one_size(list)) operation.equal_parts = EqualParts::kInputs;
  return issue(output.device(), std::move(operation));
}

WorkPtr PyncclBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPtr PyncclBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  check_pairs(outputs, inputs);
  const at::Tensor& first = inputs.front();
  auto operation = create_operation(OpType::_REDUCE_SCATTER_BASE, "pynccl:_reduce_scatter_base",
                                    options, inputs, outputs);
  std::optional<Factor> factor = reduction(options.reduceOp, first).factor;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_tensor("input", inputs[i], first.device());
    check_tensor("output", outputs[i], first.device());
    check_same_layout("output", outputs[i], inputs[i]);
    if (factor) check_same_dtype("input", inputs[i], first);
    check_count("input", inputs[i], outputs[i].numel() * size_);
    operation.calls.push_back(call(PYNCCL_REDUCE_SCATTER, inputs[i].const_data_ptr(),
                                   outputs[i].data_ptr(), reduced("output", outputs[i]),
                                   reduction(options.reduceOp, inputs[i]).op));
  }
  set_factor(operation, std::move(factor));
  return issue(first.device(), std::move(operation));
}

WorkPtr PyncclBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                const c10d::AllToAllOptions& options) {
  check_length("input_tensor_list", inputs.size(), static_cast<std::size_t>(size_));
  check_list("input_tensor_list", inputs, size_, inputs.front());
  check_list("output_tensor_list", outputs, size_, inputs.front());
  const auto own = static_cast<std::size_t>(rank_);
  check_count("output_tensor_list", outputs[own], inputs[own].numel());
  auto operation =
      create_operation(OpType::ALLTOALL, "pynccl:all_to_all", options, inputs, outputs);
  for (int peer = 0; peer < size_; ++peer) {
    operation.calls.push_back(send_to(peer, inputs[static_cast<std::size_t>(peer)]));
    operation.calls.push_back(receive_from(peer, outputs[static_cast<std::size_t>(peer)]));
  }
  return issue(inputs.front().device(), std::move(operation));
}

WorkPtr PyncclBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                     std::vector<std::int64_t>& output_splits,
                                     std::vector<std::int64_t>& input_splits,
                                     const c10d::AllToAllOptions& options) {
  check_tensor("input", input, input.device());
  check_tensor("output", output, input.device());
  check_same_layout("output", output, input);
  auto operation = create_operation(OpType::ALLTOALL_BASE, "pynccl:all_to_all_single", options,
                                    {input}, {output});
  const Parts sent = parts_of("input", input, input_splits, size_);
  const Parts received = parts_of("output", output, output_splits, size_);
  if (output_splits.empty() && input_splits.empty()) {
    check_count("output", output, input.numel());
    operation.calls.push_back(call(PYNCCL_ALL_TO_ALL, input.const_data_ptr(), output.data_ptr(),
                                   part(input, sent.sizes.front())));
    return issue(input.device(), std::move(operation));
  }
  for (int peer = 0; peer < size_; ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    operation.calls.push_back(call(PYNCCL_SEND, at_element(input, sent.offsets[p]), nullptr,
                                   part(input, sent.sizes[p]), 0, peer));
    operation.calls.push_back(call(PYNCCL_RECV, nullptr, at_element(output, received.offsets[p]),
                                   part(output, received.sizes[p]), 0, peer));
  }
  return issue(input.device(), std::move(operation));
}

WorkPtr PyncclBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::GatherOptions& options) {
  at::Tensor& input = only("tensor", inputs);
  check_tensor("tensor", input, input.device());
  const int root = checked_root("dst", options.rootRank);
  auto operation = create_operation(OpType::GATHER, "pynccl:gather", options, {input}, {});
  if (rank_ == root) {
    Tensors& list = only_list("gather_list", outputs);
    check_list("gather_list", list, size_, input);
    check_count("gather_list", list[static_cast<std::size_t>(rank_)], input.numel());
    for (int peer = 0; peer < size_; ++peer)
      operation.calls.push_back(receive_from(peer, list[static_cast<std::size_t>(peer)]));
    operation.outputs = list;
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), "gather_list: must not be passed on ranks other than dst");
  }
  operation.calls.push_back(send_to(root, input));
  return issue(input.device(), std::move(operation));
}

#if PYNCCL_TORCH_SINCE(2, 14)
WorkPtr PyncclBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                     const c10d::GatherOptions& options) {
  check_tensor("tensor", input, input.device());
  const int root = checked_root("dst", options.rootRank);
  auto operation = create_operation(OpType::GATHER, "pynccl:gather_single", options, {input}, {});
  if (rank_ == root) {
    check_tensor("gather_tensor", output, input.device());
    check_same_layout("gather_tensor", output, input);
    check_count("gather_tensor", output, input.numel() * size_);
    operation.outputs.push_back(output);
  }
  operation.calls.push_back(call(PYNCCL_GATHER, input.const_data_ptr(),
                                 rank_ == root ? output.data_ptr() : nullptr, moved(input), 0,
                                 root));
  return issue(input.device(), std::move(operation));
}
#endif

WorkPtr PyncclBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                               const c10d::ScatterOptions& options) {
  at::Tensor& output = only("tensor", outputs);
  check_tensor("tensor", output, output.device());
  const int root = checked_root("src", options.rootRank);
  auto operation = create_operation(OpType::SCATTER, "pynccl:scatter", options, {}, {output});
  if (rank_ == root) {
    Tensors& list = only_list("scatter_list", inputs);
    check_list("scatter_list", list, size_, output);
    check_count("scatter_list", list[static_cast<std::size_t>(rank_)], output.numel());
    for (int peer = 0; peer < size_; ++peer)
      operation.calls.push_back(send_to(peer, list[static_cast<std::size_t>(peer)]));
    operation.tensors = list;
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), "scatter_list: must not be passed on ranks other than src");
  }
  operation.calls.push_back(receive_from(root, output));
  return issue(output.device(), std::move(operation));
}

WorkPtr PyncclBackend::send(Tensors& tensors, int peer, int /*tag*/) {
  return message(tensors, peer, true);
}

WorkPtr PyncclBackend::recv(Tensors& tensors, int peer, int /*tag*/) {
  return message(tensors, peer, false);
}

// NCCL cannot receive from any source, but in a group of two there is only one.
WorkPtr PyncclBackend::recvAnysource(Tensors& tensors, int /*tag*/) {
  TORCH_CHECK_VALUE(size_ == 2,
                    "src: NCCL cannot receive from any source; pass src or group_src, which can be "
                    "omitted only in a group of two ranks; this group has ",
                    size_);
  return message(tensors, 1 - rank_, false);
}

// torch's batch_isend_irecv does not end coalescing after an exception, and later operations must
// not be added to an abandoned batch.
WorkPtr PyncclBackend::message(Tensors& tensors, int peer, bool sends) {
  try {
    return checked_message(tensors, peer, sends);
  } catch (...) {
    take_coalesced();
    throw;
  }
}

WorkPtr PyncclBackend::checked_message(Tensors& tensors, int peer, bool sends) {
  const char* name = sends ? "dst" : "src";
  checked_root(name, peer);
  at::Tensor& tensor = only("tensor", tensors);
  check_tensor("tensor", tensor, tensor.device());
  TORCH_CHECK_VALUE(peer != rank_ || coalescing_, name, ": ", peer,
                    " is this rank; pass both the send and the receive to one batch_isend_irecv");
  auto operation = sends ? create_operation(OpType::SEND, "pynccl:send", {tensor}, {})
                         : create_operation(OpType::RECV, "pynccl:recv", {}, {tensor});
  const bool on_group = sends_on_group(tensor.device());
  const int rank = on_group ? peer : static_cast<int>(peer > rank_);
  operation.calls.push_back(sends ? send_to(rank, tensor) : receive_from(rank, tensor));
  operation.peer = peer;
  if (on_group || estimating_) return issue(tensor.device(), std::move(operation));
  return issue(lane({tensor.device(), peer, sends}), std::move(operation));
}

WorkPtr PyncclBackend::barrier(const c10d::BarrierOptions& options) {
  // torch does not forward the device of options set in Python.
  at::Device device =
      options.device ? *options.device : bound_device_id_.value_or(device_of_collectives());
  // device_ids refers to accelerators, and is ignored without one.
  if (!options.device_ids.empty() && (!device.is_cpu() || at::hasCUDA()))
    device = at::Device(device.is_cpu() ? at::kCUDA : device.type(),
                        static_cast<c10::DeviceIndex>(options.device_ids.front()));
  device = with_index(device);
  const at::Tensor token = at::zeros({1}, at::TensorOptions().device(device).dtype(at::kByte));
  auto operation = create_operation(OpType::BARRIER, "pynccl:barrier", options, {token}, {});
  operation.blocks = true;
  operation.calls.push_back(
      call(PYNCCL_ALL_REDUCE, token.data_ptr(), token.data_ptr(), moved(token), types::ncclSum));
  return issue(device, std::move(operation));
}

}  // namespace pynccl::dist
