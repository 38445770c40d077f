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

[[noreturn]] void throw_not_timed(const char* name) {
  TORCH_CHECK(false, "getDuration: ", name, " was not timed; call enableCollectivesTiming() first");
}

}  // namespace

void throw_timed_out(const char* name, int rank, std::chrono::milliseconds timeout) {
  throw_backend_error("rank " + std::to_string(rank) + ": Timed out waiting " +
                      std::to_string(timeout.count()) + "ms for " + name);
}

void PyncclWork::end_record() {
  if (const auto end = std::exchange(recordFunctionEndCallback_, nullptr)) end();
}

bool HostWork::wait(std::chrono::milliseconds timeout) {
  const GilReleased released;  // torch's binding of synchronize() holds the GIL
  const Ending::Call call;
  Connection::Wait traced(connection_.get(), nullptr);
  bool forked = false;
  if (const auto queue = queue_.lock()) {
    forked = queue->is_forked();
    if (!forked) timeout == kNoTimeout ? queue->run_until(*this) : queue->start();
  }
  std::unique_lock lock(mutex_);
  if (forked && !completed_)
    throw_backend_error(std::string(name_) +
                        ": it was pending when this process was forked; only the parent can wait "
                        "for it");
  std::optional<std::chrono::steady_clock::time_point> until;  // else the communicator's deadline
  if (timeout != kNoTimeout) until = std::chrono::steady_clock::now() + timeout;
  if (!wait_with_signals(cv_, lock, until, [this] { return completed_; }))
    throw_timed_out(name_, rank_, timeout);
  traced.of(sequence_);
  if (!exception_) return true;
  lock.unlock();
  run_signal_handlers();
  std::rethrow_exception(exception_);
}

bool HostWork::isSuccess() const {
  const std::scoped_lock lock(mutex_);
  return completed_ && !exception_;
}

c10::intrusive_ptr<c10::ivalue::Future> HostWork::getFuture() {
  return future(future_, c10::ListType::create(c10::TensorType::get()), &HostWork::mark);
}

c10::intrusive_ptr<c10::ivalue::Future> HostWork::getFutureResult() {
  return future(result_, c10::IntType::get(), &HostWork::mark_result);
}

c10::intrusive_ptr<c10::ivalue::Future> HostWork::future(
    c10::intrusive_ptr<c10::ivalue::Future>& kept, const c10::TypePtr& type, Mark mark) {
  std::unique_lock lock(mutex_);
  if (kept) return kept;
  kept = c10::make_intrusive<c10::ivalue::Future>(type);
  const auto future = kept;
  const bool completed = completed_;
  lock.unlock();
  if (completed)
    (this->*mark)(*future);
  else if (const auto queue = queue_.lock())
    queue->start();
  return future;
}

bool HostWork::has_future() const {
  const std::scoped_lock lock(mutex_);
  return future_ || result_;
}

float HostWork::getDuration() const {
  const std::scoped_lock lock(mutex_);
  TORCH_CHECK(completed_, "getDuration: ", name_, " has not ended");
  if (!duration_) throw_not_timed(name_);
  return *duration_;
}

void HostWork::run(Operation& operation) {
  const auto began =
      operation.timed ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
  connection_->issue(operation, nullptr);
  sequence_ = connection_->last_operation();
  if (!operation.timed) return;
  duration_ =
      std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - began).count();
}

void HostWork::settle(std::exception_ptr error) {
  end_record();  // before wait() returns, after which the profiler may free it
  std::unique_lock lock(mutex_);
  completed_ = true;
  exception_ = std::move(error);
  const auto future = future_;
  const auto result = result_;
  lock.unlock();
  cv_.notify_all();
  if (future) mark(*future);
  if (result) mark_result(*result);
}

void HostWork::mark(c10::ivalue::Future& future) const {
  if (exception_)
    future.setError(exception_);
  else
    future.markCompleted(c10::IValue(outputs_));
}

void HostWork::mark_result(c10::ivalue::Future& future) const {
  auto result = c10d::WorkResult::SUCCESS;
  if (exception_) {
    result = c10d::WorkResult::COMM_ERROR;
    try {
      std::rethrow_exception(exception_);
    } catch (const TimeLimitError&) {
      result = c10d::WorkResult::TIMEOUT;
    } catch (const std::exception&) {
    }
  }
  future.markCompleted(c10::IValue(static_cast<std::int64_t>(result)));
}

DeviceWork::DeviceWork(int rank, Operation operation, std::chrono::milliseconds timeout,
                       std::shared_ptr<Connection> connection, c10::Stream stream,
                       std::optional<LaneEvent> done, std::optional<Times> times)
    : PyncclWork(rank, operation, timeout, std::move(connection)),
      stream_(stream),
      capture_(connection_ ? connection_->capture_of(stream) : 0),
      blocks_(operation.blocks),
      done_(std::move(done)),
      times_(std::move(times)) {
  end_record();
  sequence_ = connection_->last_operation();
  if (!done_) return;
  held_ = std::move(operation.tensors);
  held_.insert(held_.end(), outputs_.begin(), outputs_.end());
  for (const Factor& factor : operation.factors)  // read when the operation runs
    if (factor.tensor.device() == stream_.device()) held_.push_back(factor.tensor);
}

// The allocator must not reuse memory that the stream is still using.
DeviceWork::~DeviceWork() {
  for (const at::Tensor& tensor : held_)
    guard_of(stream_.device()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream_);
}

void DeviceWork::check_not_captured() const {
  TORCH_CHECK_VALUE(capture_ == 0, name_,
                    ": it was captured into a graph, and runs at every launch of the graph; "
                    "synchronize the stream of the launch instead");
}

bool DeviceWork::done() const {
  check_not_captured();
  const Connection::RelaxedCapture relaxed(*connection_);
  return done_ ? (*done_)->query() : stream_.query();
}

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

void DeviceWork::check() const {
  if (const auto error = exception()) std::rethrow_exception(error);
}

// Waiting for an event of another capture would invalidate the stream's capture.
void DeviceWork::check_capture(const c10::Stream& waiting) const {
  if (capture_ == 0) [[likely]]
    return;
  TORCH_CHECK_VALUE(connection_->capture_of(stream_) == capture_, name_,
                    ": it was captured into a graph, whose capture has ended; call wait() within "
                    "the capture. It runs at every launch of the graph");
  const std::uint64_t capture = connection_->capture_of(waiting);
  TORCH_CHECK_VALUE(capture == 0 || capture == capture_, name_,
                    ": it was captured into a graph, and the current stream is being captured "
                    "into another one");
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  const Ending::Call call;
  synchronize();
  if (blocks_ || timeout != kNoTimeout) wait_on_host(timeout == kNoTimeout ? timeout_ : timeout);
  return true;
}

void DeviceWork::synchronize() {
  if (done_) {
    const c10::Stream current = guard_of(stream_.device()).getStream(stream_.device());
    check_capture(current);
    Connection::Wait traced(connection_.get(), current.native_handle());
    traced.of(sequence_);
    (*done_)->block(current);
  }
  std::vector<at::Tensor> released;  // without the lock
  {
    const std::scoped_lock lock(mutex_);  // several threads may wait
    released.swap(held_);
  }
  check();
}

void DeviceWork::wait_on_host(std::chrono::milliseconds timeout) {
  SignalPoll signals;
  auto now = std::chrono::steady_clock::now();
  const auto until = now + timeout;
  auto look = now + kBetweenLooks;  // checks of the communicator
  for (; !done(); now = std::chrono::steady_clock::now()) {
    if (now > look) {
      check();
      signals.look();
      look = now + kBetweenLooks;
    }
    if (now > until) throw_timed_out(name_, rank_, timeout);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  check();  // the kernels of a failed communicator also end
}

float DeviceWork::getDuration() const {
  if (!times_) throw_not_timed(name_);
  check_not_captured();
  const Connection::RelaxedCapture relaxed(*connection_);
  TORCH_CHECK(times_->ended.query(), "getDuration: ", name_, " has not ended");
  return static_cast<float>(times_->began.elapsedTime(times_->ended));
}

// Complete immediately; a stream that waits for it waits for the operation.
c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  check_capture(stream_);
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{stream_.device()});
  const c10::MultiStreamGuard current(stream_);
  if (const auto error = exception())
    future->setError(error);
  else
    future->markCompleted(c10::IValue(outputs_));
  return future;
}

}  // namespace pynccl::dist
