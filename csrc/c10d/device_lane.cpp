// The lane of a communicator of a device: asynchronous operations run on a stream of the lane, each
// between two events.
#include <c10/core/DeviceGuard.h>

#include <mutex>
#include <thread>

#include "lane.h"
#include "work.h"

namespace pynccl::dist {
namespace {

class DeviceLane final : public Lane {
 public:
  DeviceLane(std::shared_ptr<Connection> connection, std::shared_ptr<Hooks> hooks,
             bool high_priority)
      : Lane(std::move(connection), std::move(hooks)),
        impl_(device().type()),
        stream_(impl_.getStreamFromGlobalPool(device(), high_priority)) {}

  c10::intrusive_ptr<c10d::Work> issue(Operation operation, int rank,
                                       std::chrono::milliseconds timeout) override {
    const c10::DeviceGuard guard(device());
    const c10::Stream current = impl_.getStream(device());
    const std::scoped_lock order(order_);
    if (!operation.async) {
      connection_->issue(operation, impl_.getStreamNativeHandle(current));
      return work(std::move(operation), rank, timeout, current, std::nullopt);
    }
    connection_->get();  // which can wait for other ranks, before the event
    c10::Event ready(device().type());
    ready.record(current);
    ready.block(stream_);
    connection_->issue(operation, impl_.getStreamNativeHandle(stream_));
    c10::Event done(device().type());
    done.record(stream_);
    return work(std::move(operation), rank, timeout, stream_, std::move(done));
  }

  c10::intrusive_ptr<c10d::Work> work_without_issue(Operation operation, int rank,
                                                    std::chrono::milliseconds timeout) override {
    return work(std::move(operation), rank, timeout, impl_.getStream(device()), std::nullopt);
  }

  void run(const std::function<void()>& body) override {
    const c10::DeviceGuard guard(device());
    const std::scoped_lock order(order_);
    body();
  }

  bool drain(std::chrono::milliseconds timeout) override {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (!stream_.query()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  const at::Device& device() const { return connection_->device(); }

  c10::intrusive_ptr<c10d::Work> work(Operation operation, int rank,
                                      std::chrono::milliseconds timeout, c10::Stream stream,
                                      std::optional<c10::Event> done) {
    auto work = c10::make_intrusive<DeviceWork>(rank, std::move(operation), timeout, connection_,
                                                stream, std::move(done));
    if (hooks_->report_completions()) report_completion(*work, stream);
    return work;
  }

  // Events of a capture cannot be asked.
  void report_completion(const DeviceWork& work, const c10::Stream& stream) {
#if PYNCCL_TORCH_SINCE(2, 13)
    if (stream.is_capturing()) return;
#endif
    c10::Event done(device().type());
    done.record(stream);
    hooks_->complete_at(std::move(done), work.completion_key());
  }

  const c10::impl::VirtualGuardImpl impl_;
  const c10::Stream stream_;
  std::mutex order_;
};

}  // namespace

std::unique_ptr<Lane> make_device_lane(std::shared_ptr<Connection> connection,
                                       std::shared_ptr<Hooks> hooks, bool high_priority) {
  return std::make_unique<DeviceLane>(std::move(connection), std::move(hooks), high_priority);
}

}  // namespace pynccl::dist
