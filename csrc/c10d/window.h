// PyncclWindow: memory of all ranks of a group that every rank can write to.
#pragma once

#include "backend.h"

#ifdef C10D_BACKEND_HAS_WINDOW

#include <torch/csrc/distributed/c10d/Window.hpp>

namespace pynccl::dist {

// Signals belong to the group, not to a window: NCCL counts them per pair of ranks. put() also
// sends one, and wait_signal() waits for one. Operations are ordered with the group's other
// operations on this device.
class PyncclWindow final : public c10d::Window {
 public:
  explicit PyncclWindow(c10::intrusive_ptr<PyncclBackend> backend) : backend_(std::move(backend)) {}

  // NCCL must be able to share the tensor's memory between ranks. owning: keeps the tensor alive.
  void tensor_register(const at::Tensor& tensor, bool owning = true) override;
  // Waits for this rank's pending operations, then for the other ranks, which have issued their
  // puts by then.
  void tensor_deregister() override;
  WorkPtr put(const at::Tensor& tensor, std::int64_t rank, std::int64_t offset, bool async,
              const c10d::PutOptions& options = {}) override;
  WorkPtr signal(std::int64_t rank, bool async, const c10d::SignalOptions& options = {}) override;
  WorkPtr wait_signal(std::int64_t rank, bool async,
                      const c10d::WaitSignalOptions& options = {}) override;
  // Returns a rank's tensor, in one dimension.
  at::Tensor map_remote_tensor(std::int64_t rank) override;
  c10d::WindowAttr get_attr(std::int64_t rank) override;

 private:
  // The registered memory of a rank.
  struct Part {
    std::int64_t nbytes;
    at::ScalarType dtype;
  };
  struct Registered {
    at::Device device;
    const void* address;
    std::uint64_t configuration;  // of the group
    std::vector<Part> parts;      // by rank
    Held window;                  // a pynccl.nccl.Window
  };
  struct Mapped {
    void* address = nullptr;  // null if the rank's memory is not mapped
    std::shared_ptr<void> owner;
  };

  // Calls body without the GIL, and sets the registration to its result.
  template <class Body>
  void change(bool registers, Body&& body);
  // Throws ValueError if there is none, or if the group has been reconfigured since.
  std::shared_ptr<const Registered> registered() const;
  std::vector<Part> exchange(const at::Tensor& tensor);
  Mapped map(const std::shared_ptr<const Registered>& window, int rank);

  const c10::intrusive_ptr<PyncclBackend> backend_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Registered> registered_;  // null: no registered tensor
  bool changing_ = false;                         // a thread is registering or deregistering
};

}  // namespace pynccl::dist

#endif
