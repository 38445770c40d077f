// PyncclBackend: a backend of torch.distributed over pynccl communicators.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "lane.h"
#include "options.h"

namespace pynccl::dist {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

// The error of operations before the first reconfiguration.
inline constexpr const char* kNotConfigured =
    "The process group has not been initialized. Call reconfigure() before issuing collectives "
    "when enable_reconfigure=True.";

class PyncclBackend final : public c10d::Backend {
 public:
  PyncclBackend(py::object connector, int rank, int size,
                c10::intrusive_ptr<PyncclOptions> options);
  ~PyncclBackend() override;

  const std::string getBackendName() const override { return "pynccl"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  void eagerConnectSingleDevice(at::Device device) override;

  // Memory from ncclMemAlloc; a negative index is the CPU.
  bool supportsTensorAlloc(c10::DeviceIndex index) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

#ifdef C10D_BACKEND_HAS_HOOKS
  void registerAbortHook(std::int64_t id, c10d::AbortHook hook) override;
  void unregisterAbortHook(std::int64_t id) override;
#endif
#if PYNCCL_TORCH_SINCE(2, 15)
  bool supportsAbortHooks() const override { return true; }
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(std::int64_t id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(std::int64_t id) override;
#endif

  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options,
                                          const int& rank, const int& size) override;
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<std::int64_t>& ranks_to_exclude, int shrink_flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts_override) override;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;
#endif
#if PYNCCL_TORCH_SINCE(2, 13)
  void suspend() override;
  void resume() override;
  std::unordered_map<std::string, std::uint64_t> getMemoryStats() override;
#endif
  virtual bool isInitialized();  // since torch 2.15
  c10d::ErrorType getError() override;
  void setGroupUid(const std::string& uid) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override { timing_ = true; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
#if PYNCCL_TORCH_SINCE(2, 14)
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input,
                        const c10d::GatherOptions& options) override;
#endif
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  bool supportsTimeEstimation() const override { return true; }
  // Virtual since torch 2.15; for earlier versions, the module binds them.
  void startTimeEstimate();
  float endTimeEstimate();

#ifdef C10D_BACKEND_HAS_WINDOW
  bool supportsWindow() const override { return true; }
  c10::intrusive_ptr<c10d::Window> new_window(
      const std::optional<at::Tensor>& tensor = std::nullopt) override;
#endif

  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  void setSequenceNumberForGroup() override {}  // every rank starts at 0
  std::uint64_t getSequenceNumberForGroup() override { return number_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
#if PYNCCL_TORCH_SINCE(2, 14)
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout) override;
#endif
  void abort() override;
  void shutdown() override;

  // Creates the communicators, see pynccl/c10d/connector.py.
  Held connector() const;
  // Returns the communicator of the group for a device, None if not created yet. Requires the GIL.
  py::object communicator(const at::Device& device);

 private:
  friend class PyncclWindow;

  // Extends the timeout of the next operation, and of those issued before that is complete.
  struct Extension {
    std::chrono::milliseconds by;
    c10::intrusive_ptr<PyncclWork> first;
  };

  struct Coalesced {
    Operation operation;
    bool messages = true;  // whether all are messages
    std::optional<at::Device> device;
  };

  struct Estimated {
    at::Device device;
    Operation operation;
  };

  // Assigns the number of an operation. Messages are numbered separately, because they do not
  // involve all ranks.
  void prepare(Operation& operation);
  // Issues a collective, or adds it to the coalesced operations.
  WorkPtr issue(const at::Device& device, Operation operation);
  // Issues a window operation.
  WorkPtr issue_one_sided(const at::Device& device, Operation operation);
  // Adds an operation to the time estimate.
  WorkPtr estimated(const at::Device& device, Operation operation);
  WorkPtr message(Tensors& tensors, int peer, bool sends);
  WorkPtr checked_message(Tensors& tensors, int peer, bool sends);
  // Ends coalescing without issuing the operations, and returns them.
  std::optional<Coalesced> take_coalesced();
  WorkPtr issue(Lane& lane, Operation operation);
  std::chrono::milliseconds timeout_of(const Operation& operation) const;
  // Applies the active extensions by addEphemeralTimeout().
  void extend(Operation& operation);
  // Whether messages use the group's communicator, as coalesced messages and those on the bound
  // device do. Otherwise each direction between two ranks has its own communicator, so a rank can
  // send and receive concurrently.
  bool sends_on_group(const at::Device& device);
  Lane& lane(Route route);
  Lane& group_lane(const at::Device& device);
  // The first accelerator that collectives have used, or the CPU if there is none.
  at::Device device_of_collectives();
  std::vector<Lane*> lanes();               // valid for the lifetime of the backend
  std::vector<py::object> communicators();  // created so far; requires the GIL
  // The options of a group derived from this one.
  c10::intrusive_ptr<PyncclOptions> derived(
      const c10::intrusive_ptr<c10d::Backend::Options>& options) const;
  std::vector<int> checked_exclusion(const std::vector<std::int64_t>& ranks, int flags) const;
  // Throw DistBackendError unless the group is open, or unless operations can be issued. Require
  // mutex_.
  void check_open() const;
  void check_usable() const;
  void drain(const char* what);
  void suspend_or_resume(bool suspends);
  // Ends all communicators, and makes further operations fail with this reason.
  void retire(const std::string& reason, const std::string& waits);
  void cancel();
  void end(const std::string& reason, bool drains);
  int checked_root(const char* name, std::int64_t root) const;

  const c10::intrusive_ptr<PyncclOptions> options_;
  std::atomic<std::uint64_t> number_ = 0;  // number of collectives so far
  std::atomic<std::uint64_t> messages_ = 0;
  std::atomic<std::uint64_t> configuration_ = 0;  // number of reconfigurations started
  std::atomic<bool> timing_ = false;
  std::atomic<Lane*> host_lane_ = nullptr;  // the group's lane on CPUs, once created
  std::atomic<bool> coalescing_ = false;    // whether coalesced_ has a value
  std::atomic<bool> extended_ = false;      // whether there are extensions_
  std::atomic<bool> estimating_ = false;    // between startTimeEstimate() and endTimeEstimate()
  const std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
  std::mutex changing_;       // held to reconfigure, suspend or resume the group
  mutable std::mutex mutex_;  // guards the following
  Held connector_;
  // Keyed by the ranks of a communicator and whether the lower one sends, so that all ranks close
  // communicators in the same order: closing waits for the other ranks.
  std::map<std::tuple<at::DeviceType, int, int, bool, int>, std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<Lane>> retired_;  // may still be in use by other threads
  std::optional<Coalesced> coalesced_;
  std::vector<Extension> extensions_;
  std::vector<Estimated> estimated_;
  std::string ended_;  // why operations cannot be issued
  std::string waits_;  // the same, until reconfigure() or resume()
  bool suspended_ = false;
  bool shut_down_ = false;
};

}  // namespace pynccl::dist
