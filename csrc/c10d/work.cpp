#include "work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>

#include <thread>

namespace pynccl::dist {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{2};

c10::impl::VirtualGuardImpl guard_of(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

void throw_timed_out(const char* name, int rank, std::chrono::milliseconds timeout) {
  throw_backend_error("Operation Timed out waiting " + std::to_string(timeout.count()) + "ms for " +
                      name + " on rank " + std::to_string(rank));
}

void PyncclWork::end_record() {
  if (const auto end = std::exchange(recordFunctionEndCallback_, nullptr)) end();
}

bool HostWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto done = [this] { return completed_; };
  if (timeout == kNoTimeout)
    cv_.wait(lock, done);  // the communicator's deadline ends it
  else if (!cv_.wait_for(lock, timeout, done))
    throw_timed_out(name_, rank_, timeout);
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

bool HostWork::isSuccess() const {
  const std::scoped_lock lock(mutex_);
  return completed_ && !exception_;
}

c10::intrusive_ptr<c10::ivalue::Future> HostWork::getFuture() {
  std::unique_lock lock(mutex_);
  if (future_) return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  const auto future = future_;
  const bool completed = completed_;
  lock.unlock();
  if (completed) mark(*future);
  return future;
}

void HostWork::settle(std::exception_ptr error) {
  end_record();  // before the wait ends: the profiler may stop then, and frees the event
  std::unique_lock lock(mutex_);
  completed_ = true;
  exception_ = std::move(error);
  const auto future = future_;
  lock.unlock();
  cv_.notify_all();
  if (future) mark(*future);
}

void HostWork::mark(c10::ivalue::Future& future) const {
  if (exception_)
    future.setError(exception_);
  else
    future.markCompleted(c10::IValue(outputs_));
}

DeviceWork::DeviceWork(int rank, Operation operation, std::chrono::milliseconds timeout,
                       std::shared_ptr<Connection> connection, c10::Stream stream,
                       std::optional<c10::Event> done)
    : PyncclWork(rank, operation, timeout),
      connection_(std::move(connection)),
      stream_(stream),
      blocks_(operation.blocks),
      done_(std::move(done)) {
  end_record();
  if (!done_) return;
  held_ = std::move(operation.tensors);
  held_.insert(held_.end(), outputs_.begin(), outputs_.end());
  for (const Factor& factor : operation.factors)  // read when the operation runs
    if (factor.tensor.device() == stream_.device()) held_.push_back(factor.tensor);
}

// The allocator must not reuse memory that the stream still uses.
DeviceWork::~DeviceWork() {
  for (const at::Tensor& tensor : held_)
    guard_of(stream_.device()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream_);
}

bool DeviceWork::done() const { return done_ ? done_->query() : stream_.query(); }

bool DeviceWork::isCompleted() { return done() || exception(); }

bool DeviceWork::isSuccess() const { return done() && !exception(); }

std::exception_ptr DeviceWork::exception() const {
  const std::string why = connection_->failure();
  if (why.empty()) return nullptr;
  try {
    throw_backend_error(std::string(name_) + ": " + why);
  } catch (const c10::DistBackendError&) {
    return std::current_exception();
  }
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  synchronize();
  if (blocks_ || timeout != kNoTimeout) wait_on_host(timeout == kNoTimeout ? timeout_ : timeout);
  return true;
}

void DeviceWork::synchronize() {
  if (done_) done_->block(guard_of(stream_.device()).getStream(stream_.device()));
  held_.clear();
}

void DeviceWork::wait_on_host(std::chrono::milliseconds timeout) {
  const auto rethrow = [this] {
    if (const auto error = exception()) std::rethrow_exception(error);
  };
  auto now = std::chrono::steady_clock::now();
  const auto until = now + timeout;
  auto look = now + kBetweenLooks;  // at the communicator
  for (; !done(); now = std::chrono::steady_clock::now()) {
    if (now > look) {
      rethrow();
      look = now + kBetweenLooks;
    }
    if (now > until) throw_timed_out(name_, rank_, timeout);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  rethrow();  // the kernels of a communicator that has failed end, too
}

// Complete at once: waiting for it makes a stream wait for ours.
c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{stream_.device()});
  const c10::MultiStreamGuard current(stream_);
  future->markCompleted(c10::IValue(outputs_));
  return future;
}

}  // namespace pynccl::dist
