// PyncclWindow: memory of all ranks of a group that each can write into.
#pragma once

#include "backend.h"

#ifdef C10D_BACKEND_HAS_WINDOW

#include <torch/csrc/distributed/c10d/Window.hpp>

namespace pynccl::dist {

// A signal is one of the group, not of a window: NCCL counts them for each pair of ranks. put()
// sends one too, and wait_signal() waits for one. Operations are in order with the others of the
// group on this device.
class PyncclWindow final : public c10d::Window {
 public:
  explicit PyncclWindow(c10::intrusive_ptr<PyncclBackend> backend) : backend_(std::move(backend)) {}

  // The tensor's memory is what NCCL can share between ranks. owning: the tensor is kept.
  void tensor_register(const at::Tensor& tensor, bool owning = true) override;
  // Waits for what this rank has issued, then for the other ranks, whose puts have been issued too.
  void tensor_deregister() override;
  WorkPtr put(const at::Tensor& tensor, std::int64_t rank, std::int64_t offset, bool async,
              const c10d::PutOptions& options = {}) override;
  WorkPtr signal(std::int64_t rank, bool async, const c10d::SignalOptions& options = {}) override;
  WorkPtr wait_signal(std::int64_t rank, bool async,
                      const c10d::WaitSignalOptions& options = {}) override;
  // The elements of a rank's tensor, in one dimension.
  at::Tensor map_remote_tensor(std::int64_t rank) override;
  c10d::WindowAttr get_attr(std::int64_t rank) override;

 private:
  // What a rank has registered.
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
    void* address = nullptr;  // null where the rank's memory is not mapped
    std::shared_ptr<void> owner;
  };

  // Calls body without the GIL, which changes what is registered to what it returns.
  template <class Body>
  void change(bool registers, Body&& body);
  // Throws ValueError where there is none, or the group has been reconfigured since.
  std::shared_ptr<const Registered> registered() const;
  std::vector<Part> exchange(const at::Tensor& tensor);
  Mapped map(const std::shared_ptr<const Registered>& window, int rank);

  const c10::intrusive_ptr<PyncclBackend> backend_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Registered> registered_;  // null: no tensor is registered
  bool changing_ = false;                         // a thread registers or deregisters a tensor
};

}  // namespace pynccl::dist

#endif
