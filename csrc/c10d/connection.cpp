#include "connection.h"

namespace pynccl::dist {

Connection::RelaxedCapture::RelaxedCapture(const Connection& connection) {
  if (!connection.connected() || !connection.ref_.on_device()) return;
  exchange_ = PYNCCL_GET_DRIVER(connection.ref_, cuThreadExchangeStreamCaptureMode);
  exchange();
}

std::uint64_t Connection::capture_of(const c10::Stream& stream) const {
  if (!connected() || !capture_info_) return 0;
  auto status = abi::CU_STREAM_CAPTURE_STATUS_NONE;
  abi::cuuint64_t id = 0;
  const auto result =
      capture_info_(static_cast<abi::CUstream>(const_cast<void*>(stream.native_handle())), &status,
                    &id, nullptr, nullptr, nullptr);
  return result == abi::CUDA_SUCCESS && status == abi::CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
}

CommunicatorRef& Connection::get() {
  if (connected_.load(std::memory_order_acquire) && !ended_.load(std::memory_order_relaxed))
      [[likely]]
    return ref_;
  const std::scoped_lock connecting(connecting_);
  check_open();
  if (connected()) return ref_;
  in_python(
      [this] { adopt(connector_->attr("connect")(route_.device, route_.peer, route_.sends)); });
  if (ended_.load()) end(false, "");  // ended while connecting
  check_open();
  return ref_;
}

void Connection::adopt(py::object communicator) {
  CommunicatorRef ref(communicator.ptr());
  const std::scoped_lock lock(mutex_);
  communicator_ = hold(std::move(communicator));
  ref_ = std::move(ref);
  if (ref_.on_device()) capture_info_ = PYNCCL_GET_DRIVER(ref_, cuStreamGetCaptureInfo);
  connected_.store(true, std::memory_order_release);
}

py::object Connection::communicator() const {
  const std::scoped_lock lock(mutex_);
  return communicator_ ? *communicator_ : py::none();
}

void Connection::check_open() {
  if (!ended_.load()) return;
  const std::scoped_lock lock(mutex_);
  throw_backend_error("the communicator is closed: " + reason_);
}

std::string Connection::failure() const {
  {
    const std::scoped_lock lock(mutex_);
    if (aborted_) return "the communicator is closed: " + reason_;
  }
  return failure_of_communicator();
}

std::string Connection::failure_of_communicator() const {
  if (!connected() || ended_.load()) return "";
  try {
    ref_.check_state();
    return "";
  } catch (const std::exception& error) {
    return ended_.load() ? "" : error.what();
  }
}

Connection::Wait::Wait(const Connection* connection, void* stream) : connection_(connection) {
  if (connection && connection->connected() && !connection->ended_.load())
    wait_ = connection->ref_.begin_wait(stream);
}

void Connection::issue(Operation& operation, void* stream) {
  CommunicatorRef& comm = get();
  for (PyncclOperation& call : operation.calls) call.stream = stream;
  try {
    if (operation.factors.empty()) [[likely]]
      issue_calls(comm, operation);
    else
      issue_with_factors(comm, operation);
  } catch (const NcclError& error) {
    const std::string text = std::string(name_of(operation)) + ": " + error.what();
    if (error.code == abi::ncclTimeout) throw TimeLimitError({__func__, __FILE__, __LINE__}, text);
    throw_backend_error(text);
  }
}

void Connection::issue_calls(CommunicatorRef& comm, const Operation& operation) {
  const auto seconds = operation.timeout == c10d::kUnsetTimeout
                           ? 0
                           : std::chrono::duration<double>(operation.timeout).count();
  comm.issue(operation.calls.data(), operation.calls.size(), seconds);
}

void Connection::issue_with_factors(CommunicatorRef& comm, Operation& operation) {
  std::vector<types::ncclRedOp_t> created;
  const auto destroy = [&] {
    try {
      for (const auto op : created) PYNCCL_GET(comm, ncclRedOpDestroy)(op, comm.handle());
    } catch (const std::invalid_argument&) {  // a failed operation has ended the communicator
    }
  };
  try {
    for (const Factor& factor : operation.factors) {
      const auto residence =
          factor.tensor.is_cpu() ? abi::ncclScalarHostImmediate : abi::ncclScalarDevice;
      types::ncclRedOp_t op;
      comm.check(PYNCCL_GET(comm, ncclRedOpCreatePreMulSum)(
                     &op, factor.tensor.data_ptr(),
                     static_cast<types::ncclDataType_t>(factor.dtype), residence, comm.handle()),
                 "ncclRedOpCreatePreMulSum");
      created.push_back(op);
      for (std::size_t i = factor.first; i < factor.end; ++i) operation.calls[i].op = op;
    }
    issue_calls(comm, operation);
  } catch (...) {
    destroy();
    throw;
  }
  destroy();
}

void Connection::end(bool done, const std::string& reason) {
  Held communicator;
  {
    const std::scoped_lock lock(mutex_);
    if (!ended_.exchange(true)) {
      reason_ = reason;
      aborted_ = !done;
    }
    communicator = std::exchange(communicator_, nullptr);
  }
  if (!communicator || !Py_IsInitialized()) return;
  in_python(
      [&] { done ? connector_->attr("close")(*communicator) : communicator->attr("abort")(); });
}

}  // namespace pynccl::dist
