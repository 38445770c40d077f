// The lane of a communicator for a device. Asynchronous operations run on a stream of the lane,
// each between two events.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <mutex>
#include <optional>
#include <thread>

#include "lane.h"
#include "work.h"

namespace pynccl::dist {
namespace {

// The single call of an operation on parts of equal size, over a flat buffer. If the parts are
// adjacent, it is their memory. Otherwise it is a new buffer, copied to or from on the current
// stream, in whose order it is freed.
class FlatCall {
 public:
  FlatCall(Operation& operation, int rank)
      : gathers_(operation.equal_parts == EqualParts::kOutputs),
        parts_(gathers_ ? operation.outputs : operation.tensors) {
    auto* memory = static_cast<char*>(parts_.front().data_ptr());
    if (!are_adjacent(memory)) {
      flat_ = at::empty({static_cast<std::int64_t>(parts_.size()), parts_.front().numel()},
                        parts_.front().options());
      memory = static_cast<char*>(flat_.data_ptr());
      if (!gathers_)
        copy([](const at::Tensor& slice, const at::Tensor& part) { slice.copy_(part, true); });
    }
    PyncclOperation one = operation.calls[static_cast<std::size_t>(rank)];
    one.kind = gathers_ ? PYNCCL_ALL_GATHER : PYNCCL_REDUCE_SCATTER;
    one.root_or_peer = 0;
    if (gathers_)
      one.recvbuff = memory;
    else
      one.sendbuff = memory;
    operation.calls.assign(1, one);
    for (Factor& factor : operation.factors) factor.end = 1;
  }
  void finish() {
    if (gathers_ && flat_.defined())
      copy([](const at::Tensor& slice, const at::Tensor& part) { part.copy_(slice, true); });
  }

 private:
  bool are_adjacent(char* memory) const {
    for (const at::Tensor& part : parts_) {
      if (part.data_ptr() != memory) return false;
      memory += part.nbytes();
    }
    return true;
  }
  // Calls function with each slice of the flat buffer and its part, both as dense vectors.
  template <class Function>
  void copy(Function&& function) const {
    const at::AutoDispatchBelowAutograd without_autograd;
    for (std::int64_t i = 0; const at::Tensor& part : parts_)
      function(flat_[i++], part.as_strided({part.numel()}, {1}));
  }

  const bool gathers_;
  const std::vector<at::Tensor> parts_;
  at::Tensor flat_;
};

class DeviceLane final : public Lane {
 public:
  DeviceLane(std::shared_ptr<Connection> connection, std::shared_ptr<Hooks> hooks,
             bool high_priority)
      : Lane(std::move(connection), std::move(hooks)),
        impl_(device().type()),
        stream_(impl_.getStreamFromGlobalPool(device(), high_priority)),
        ready_(device().type()) {}

  c10::intrusive_ptr<PyncclWork> issue(Operation operation, int rank,
                                       std::chrono::milliseconds timeout) override {
    const c10::DeviceGuard guard(device());
    const c10::Stream current = impl_.getStream(device());
    const std::scoped_lock order(order_);
    if (!operation.async) {
      auto times = issue_on(current, operation, rank);
      const std::scoped_lock lock(callers_mutex_);
      callers_ = current;
      return work(std::move(operation), rank, timeout, current, std::nullopt, std::move(times));
    }
    connection_->get();  // may wait for other ranks, so before the event
    ready_.record(current);
    ready_.block(stream_);
    auto times = issue_on(stream_, operation, rank);
    LaneEvent done(events_);
    done->record(stream_);
    return work(std::move(operation), rank, timeout, stream_, std::move(done), std::move(times));
  }

  c10::intrusive_ptr<PyncclWork> work_without_issue(Operation operation, int rank,
                                                    std::chrono::milliseconds timeout) override {
    return work(std::move(operation), rank, timeout, impl_.getStream(device()), std::nullopt,
                std::nullopt);
  }

  void run(const std::function<void()>& body) override {
    const c10::DeviceGuard guard(device());
    const std::scoped_lock order(order_);
    body();
  }

  bool drain(std::chrono::milliseconds timeout) override {
    const auto until = std::chrono::steady_clock::now() + timeout;
    const auto done = [this] {
      const std::scoped_lock lock(callers_mutex_);
      const Connection::RelaxedCapture relaxed(*connection_);
      return stream_.query() && (!callers_ || callers_->query());
    };
    SignalPoll signals;
    while (!done()) {
      if (std::chrono::steady_clock::now() > until) return false;
      signals.look();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  const at::Device& device() const { return connection_->device(); }

  // If the operation is timed, it is enqueued between two timing events.
  std::optional<Times> issue_on(const c10::Stream& stream, Operation& operation, int rank) {
    std::optional<c10::StreamGuard> current;
    std::optional<FlatCall> flat;
    if (operation.equal_parts != EqualParts::kNone) {
      current.emplace(stream);
      flat.emplace(operation, rank);
    }
    std::optional<Times> times;
    if (operation.timed) {
      times.emplace(Times{timed_event(), timed_event()});
      times->began.record(stream);
    }
    connection_->issue(operation, impl_.getStreamNativeHandle(stream));
    if (flat) flat->finish();
    if (times) times->ended.record(stream);
    return times;
  }

  c10::Event timed_event() const { return {device().type(), c10::EventFlag::BACKEND_DEFAULT}; }

  c10::intrusive_ptr<PyncclWork> work(Operation operation, int rank,
                                      std::chrono::milliseconds timeout, c10::Stream stream,
                                      std::optional<LaneEvent> done, std::optional<Times> times) {
    auto work = c10::make_intrusive<DeviceWork>(rank, std::move(operation), timeout, connection_,
                                                stream, std::move(done), std::move(times));
    // Captured events cannot be queried.
    if (hooks_->report_completions() && connection_->capture_of(stream) == 0) {
      c10::Event done_for_hooks(device().type());
      done_for_hooks.record(stream);
      hooks_->complete_at(std::move(done_for_hooks), work->completion_key(), connection_);
    }
    return work;
  }

  const c10::impl::VirtualGuardImpl impl_;
  const c10::Stream stream_;
  const std::shared_ptr<LaneEvents> events_ = std::make_shared<LaneEvents>(device().type());
  std::mutex order_;
  c10::Event ready_;                    // under order_
  std::mutex callers_mutex_;            // guards the following
  std::optional<c10::Stream> callers_;  // the stream of the last synchronous operation
};

}  // namespace

std::unique_ptr<Lane> make_device_lane(std::shared_ptr<Connection> connection,
                                       std::shared_ptr<Hooks> hooks, bool high_priority) {
  return std::make_unique<DeviceLane>(std::move(connection), std::move(hooks), high_priority);
}

}  // namespace pynccl::dist
