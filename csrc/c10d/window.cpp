#include "window.h"

#ifdef C10D_BACKEND_HAS_WINDOW

#include "tensors.h"

namespace pynccl::dist {
namespace {

constexpr const char* kNoTensor = "window: it has no registered tensor";

void check_window_tensor(const at::Tensor& tensor, const at::Device& device) {
  check_tensor("tensor", tensor, device);
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "tensor: it is not contiguous: sizes ", tensor.sizes(),
                    ", strides ", tensor.strides());
}

// Creates a one-sided operation with one call.
template <class Options>
Operation one_sided(PyncclOperationKind kind, const char* title, int peer, bool async,
                    const Options& options) {
  Operation operation;
  operation.title = title;
  operation.async = async;
  operation.timeout = options.timeout;
  operation.peer = peer;
  operation.messages = true;
  operation.calls.push_back({kind, 0, 0, peer, nullptr, nullptr, 1, nullptr});
  return operation;
}

}  // namespace

c10::intrusive_ptr<c10d::Window> PyncclBackend::new_window(
    const std::optional<at::Tensor>& tensor) {
  auto window = c10::make_intrusive<PyncclWindow>(
      c10::intrusive_ptr<PyncclBackend>::unsafe_reclaim_from_nonowning(this));
  if (tensor) window->tensor_register(*tensor);
  return window;
}

WorkPtr PyncclBackend::issue_one_sided(const at::Device& device, Operation operation) {
  TORCH_CHECK_VALUE(!coalescing_, name_of(operation), ": operations are being coalesced");
  if (estimating_) return estimated(device, std::move(operation));
  WorkPtr work;
  without_gil([&] { work = issue(group_lane(device), std::move(operation)); });
  return work;
}

std::shared_ptr<const PyncclWindow::Registered> PyncclWindow::registered() const {
  const std::scoped_lock lock(mutex_);
  TORCH_CHECK_VALUE(registered_, kNoTensor);
  TORCH_CHECK_VALUE(registered_->configuration == backend_->configuration_,
                    "window: the group was reconfigured; register its tensor again");
  return registered_;
}

// An all-gather, ordered with the group's operations.
std::vector<PyncclWindow::Part> PyncclWindow::exchange(const at::Tensor& tensor) {
  const auto own = at::tensor({static_cast<std::int64_t>(tensor.nbytes()),
                               static_cast<std::int64_t>(tensor.scalar_type())})
                       .to(tensor.device());
  at::Tensor all = at::empty({backend_->getSize(), 2}, own.options());
  Operation gather;
  gather.title = "pynccl:window";
  gather.async = false;
  gather.tensors = {own};
  gather.outputs = {all};
  const Elements elements = moved(own);
  gather.calls.push_back({PYNCCL_ALL_GATHER, elements.dtype, 0, 0, own.const_data_ptr(),
                          all.data_ptr(), elements.count, nullptr});
  backend_->issue_one_sided(tensor.device(), std::move(gather))->wait();
  const at::Tensor read = all.cpu();
  std::vector<Part> parts;
  for (int rank = 0; rank < backend_->getSize(); ++rank) {
    const auto* part = read.const_data_ptr<std::int64_t>() + 2 * rank;
    parts.push_back({part[0], static_cast<at::ScalarType>(part[1])});
  }
  return parts;
}

template <class Body>
void PyncclWindow::change(bool registers, Body&& body) {
  const auto locked = [this](auto&& f) {
    const std::scoped_lock lock(mutex_);
    f();
  };
  TORCH_CHECK_VALUE(!backend_->estimating_,
                    "window: its tensor cannot change during a time estimate");
  locked([&] {
    TORCH_CHECK_VALUE(!changing_, "window: another thread is changing its tensor");
    TORCH_CHECK_VALUE(registers || registered_, kNoTensor);
    TORCH_CHECK_VALUE(!registers || !registered_,
                      "tensor: the window already has one; deregister it first");
    changing_ = true;
  });
  try {
    without_gil([&] {
      std::shared_ptr<const Registered> changed = body();
      locked([&] { registered_.swap(changed); });  // destroys the old one without the lock
    });
  } catch (...) {
    locked([&] { changing_ = false; });
    throw;
  }
  locked([&] { changing_ = false; });
}

void PyncclWindow::tensor_register(const at::Tensor& tensor, bool owning) {
  TORCH_CHECK_VALUE(tensor.defined(), "tensor: expected a tensor, got none");
  check_window_tensor(tensor, tensor.device());
  change(true, [&] {
    auto created = std::make_shared<Registered>(Registered{tensor.device(), tensor.const_data_ptr(),
                                                           backend_->configuration_,
                                                           exchange(tensor), nullptr});
    Lane& lane = backend_->group_lane(tensor.device());
    lane.run([&] {
      in_python([&] {
        const py::object comm = lane.connection().communicator();
        created->window = hold(backend_->connector()->attr("register")(comm, tensor, owning));
      });
    });
    return created;
  });
}

void PyncclWindow::tensor_deregister() {
  change(false, [&]() -> std::shared_ptr<const Registered> {
    {
      const std::scoped_lock lock(mutex_);
      // The window has ended with its communicator.
      if (registered_->configuration != backend_->configuration_) return nullptr;
    }
    const auto window = registered();
    const at::Tensor token =
        at::zeros({1}, at::TensorOptions().device(window->device).dtype(at::kByte));
    Operation barrier;
    barrier.title = "pynccl:window";
    barrier.async = false;
    barrier.blocks = true;
    barrier.outputs = {token};
    barrier.calls.push_back({PYNCCL_ALL_REDUCE, moved(token).dtype, types::ncclSum, 0,
                             token.data_ptr(), token.data_ptr(), 1, nullptr});
    backend_->issue_one_sided(window->device, std::move(barrier))->wait();
    backend_->group_lane(window->device).run([&] {
      in_python([&] { window->window->attr("close")(); });
    });
    return nullptr;
  });
}

WorkPtr PyncclWindow::put(const at::Tensor& tensor, std::int64_t rank, std::int64_t offset,
                          bool async, const c10d::PutOptions& options) {
  const auto window = registered();
  const int peer = backend_->checked_root("dst_rank", rank);
  check_window_tensor(tensor, window->device);
  const Part& part = window->parts[static_cast<std::size_t>(peer)];
  TORCH_CHECK_VALUE(tensor.scalar_type() == part.dtype, "tensor: it has dtype ",
                    tensor.scalar_type(), ", the window of rank ", rank, " has ", part.dtype);
  TORCH_CHECK_VALUE(tensor.numel() != 0,
                    "tensor: it has no elements; use signal() to send only a signal");
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  const std::int64_t elements = part.nbytes / size;
  TORCH_CHECK_VALUE(offset >= 0 && tensor.numel() <= elements - offset,
                    "target_offset_nelems: ", tensor.numel(), " elements at ", offset,
                    " end after the window of rank ", rank, ", which has ", elements);
  const CommunicatorRef& comm = backend_->group_lane(window->device).connection().get();
  TORCH_CHECK_VALUE(comm.in_symmetric_window(tensor.const_data_ptr(), tensor.nbytes()),
                    "tensor: its memory is not in a window of the group; NCCL puts from registered "
                    "memory only");
  Operation operation = one_sided(PYNCCL_PUT_SIGNAL, "pynccl:put", peer, async, options);
  struct Target : PyncclTarget {
    std::shared_ptr<const Registered> window;
  };
  const auto target = std::make_shared<Target>();
  target->PyncclTarget::window = window->address;
  target->offset = static_cast<std::size_t>(offset * size);
  target->window = window;
  PyncclOperation& call = operation.calls.front();
  const Elements sent = moved(tensor);
  call.dtype = sent.dtype;
  call.count = sent.count;
  call.sendbuff = tensor.const_data_ptr();
  call.recvbuff = static_cast<PyncclTarget*>(target.get());
  operation.held = target;
  operation.tensors = {tensor};
  return backend_->issue_one_sided(window->device, std::move(operation));
}

WorkPtr PyncclWindow::signal(std::int64_t rank, bool async, const c10d::SignalOptions& options) {
  const auto window = registered();
  const int peer = backend_->checked_root("peer_rank", rank);
  return backend_->issue_one_sided(window->device,
                                   one_sided(PYNCCL_SIGNAL, "pynccl:signal", peer, async, options));
}

WorkPtr PyncclWindow::wait_signal(std::int64_t rank, bool async,
                                  const c10d::WaitSignalOptions& options) {
  const auto window = registered();
  const int peer = backend_->checked_root("peer_rank", rank);
  return backend_->issue_one_sided(
      window->device, one_sided(PYNCCL_WAIT_SIGNAL, "pynccl:wait_signal", peer, async, options));
}

PyncclWindow::Mapped PyncclWindow::map(const std::shared_ptr<const Registered>& window, int rank) {
  CommunicatorRef& comm = backend_->group_lane(window->device).connection().get();
  abi::ncclWindow_t handle;
  with_gil([&] {
    handle =
        reinterpret_cast<abi::ncclWindow_t>(window->window->attr("handle").cast<std::uintptr_t>());
  });
  Mapped mapped;
  try {
    if (window->device.is_cpu()) {
      using Map = types::ncclResult_t(types::ncclComm_t, abi::ncclWindow_t, int, void**, void**);
      using Unmap = void(void*);
      void* mapping = nullptr;
      comm.check(
          comm.get<Map>("hostWindowMap")(comm.handle(), handle, rank, &mapped.address, &mapping),
          "hostWindowMap");
      mapped.owner = std::shared_ptr<void>(mapping, comm.get<Unmap>("hostWindowUnmap"));
    } else {
      using Pointer = types::ncclResult_t(abi::ncclWindow_t, std::size_t, int, void**);
      comm.check(comm.get<Pointer>("ncclGetPeerDevicePointer")(handle, 0, rank, &mapped.address),
                 "ncclGetPeerDevicePointer");
      mapped.owner = std::const_pointer_cast<Registered>(window);
    }
  } catch (const std::runtime_error& error) {  // the library lacks the function, or it failed
    throw_backend_error(std::string("map_remote_tensor: ") + error.what());
  }
  return mapped;
}

at::Tensor PyncclWindow::map_remote_tensor(std::int64_t rank) {
  const auto window = registered();
  const int peer = backend_->checked_root("rank", rank);
  Mapped mapped;
  without_gil([&] { mapped = map(window, peer); });
  TORCH_CHECK_VALUE(mapped.address, "rank: NCCL cannot map the memory of rank ", rank,
                    " for loads and stores; use put()");
  const Part& part = window->parts[static_cast<std::size_t>(peer)];
  const auto options = at::TensorOptions().device(window->device).dtype(part.dtype);
  const auto size = static_cast<std::int64_t>(options.dtype().itemsize());
  return at::from_blob(
      mapped.address, {part.nbytes / size}, [owner = mapped.owner](void*) {}, options);
}

c10d::WindowAttr PyncclWindow::get_attr(std::int64_t rank) {
  const auto window = registered();
  backend_->checked_root("peer_rank", rank);
  // On CPUs, all ranks share one machine with coherent memory.
  return {window->device.is_cpu() ? c10d::WindowAccessType::UNIFIED
                                  : c10d::WindowAccessType::SEPARATE};
}

}  // namespace pynccl::dist

#endif
