#include "hostnccl/streams/graph.h"

#include <algorithm>

#include "hostnccl/streams/device_error.h"

namespace hostnccl {
namespace {

void check(const Ref<Communicator>& comm) {
  if (!comm.slot()->open.load(std::memory_order_acquire)) {
    const std::string& name = comm->settings().name;
    throw DeviceError(abi::CUDA_ERROR_ILLEGAL_STATE,
                      format("the graph needs the communicator%s%s of rank %d of %d, which was "
                             "destroyed",
                             name.empty() ? "" : " ", name.c_str(), comm->rank(), comm->nranks()));
  }
  try {
    comm->check_usable();
  } catch (Error& error) {
    throw DeviceError(std::make_shared<StreamFailure>(error.set_origin(comm.slot())));
  }
}

void check(const Ref<Window>& window) {
  if (!window || window.slot()->open.load(std::memory_order_acquire)) return;
  throw DeviceError(abi::CUDA_ERROR_ILLEGAL_STATE,
                    "the graph writes to a window that was deregistered");
}

}  // namespace

size_t Graph::branches() const {
  size_t branches = 0;
  for (const Node& node : nodes_) branches = std::max(branches, node.branch + 1);
  return branches;
}

size_t Graph::add(Node node) {
  nodes_.push_back(std::move(node));
  return nodes_.size() - 1;
}

bool Graph::finish(std::vector<size_t> final_nodes) {
  final_nodes_ = std::move(final_nodes);
  std::vector<bool> joined(nodes_.size());
  for (const size_t index : final_nodes_) joined[index] = true;
  for (size_t index = nodes_.size(); index-- > 0;) {
    if (!joined[index]) return false;
    for (const size_t earlier : nodes_[index].dependencies) joined[earlier] = true;
  }
  return true;
}

void Graph::check_usable() const {
  for (const Node& node : nodes_) {
    const auto* operations = std::get_if<std::vector<NodeOperation>>(&node.payload);
    if (operations == nullptr) continue;
    for (const NodeOperation& operation : *operations) {
      check(operation.comm);
      check(operation.window);
    }
  }
}

}  // namespace hostnccl
