// Lanes, coalescing and lifetime of the backend.
#include "backend.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

#include "tensors.h"

namespace pynccl::dist {
namespace {

constexpr std::chrono::milliseconds kGrace{2000};  // for operations that were not waited for

}  // namespace

PyncclBackend::PyncclBackend(py::object connector, int rank, int size,
                             c10::intrusive_ptr<PyncclOptions> options)
    : Backend(rank, size), options_(std::move(options)), connector_(hold(std::move(connector))) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  if (options_->enable_reconfigure) waits_ = kNotConfigured;
#endif
}

PyncclBackend::~PyncclBackend() {
  without_gil([this] {
    try {
      end("its group was dropped", false);
    } catch (const std::exception& error) {
      TORCH_WARN("pynccl: ", error.what());
    }
    lanes_.clear();
    retired_.clear();
  });
}

void PyncclBackend::check_open() const {
  if (!ended_.empty()) throw_backend_error("the process group is closed: " + ended_);
}

void PyncclBackend::check_usable() const {
  check_open();
  if (!waits_.empty()) throw_backend_error(waits_);
}

Lane& PyncclBackend::lane(Route route) {
  const std::scoped_lock lock(mutex_);
  check_usable();
  const bool pair = route.is_pair();
  auto& found = lanes_[{route.device.type(), pair ? std::min(rank_, route.peer) : -1,
                        pair ? std::max(rank_, route.peer) : -1,
                        pair && route.sends == (rank_ < route.peer), route.device.index()}];
  if (!found) {
    auto connection = std::make_shared<Connection>(connector_, route);
    found = route.device.is_cpu()
                ? make_host_lane(std::move(connection), hooks_)
                : make_device_lane(std::move(connection), hooks_, options_->high_priority);
  }
  if (!pair && route.device.is_cpu()) host_lane_.store(found.get(), std::memory_order_release);
  return *found;
}

Lane& PyncclBackend::group_lane(const at::Device& device) {
  if (device.is_cpu()) {
    if (Lane* found = host_lane_.load(std::memory_order_acquire)) [[likely]]
      return *found;
  }
  return lane({device});
}

WorkPtr PyncclBackend::issue(const at::Device& device, Operation operation) {
  check_overlap(operation, rank_, size_);
  if (coalescing_.load(std::memory_order_relaxed)) [[unlikely]] {
    const std::scoped_lock lock(mutex_);
    if (coalesced_) {
      TORCH_CHECK_VALUE(!coalesced_->device || *coalesced_->device == device,
                        "coalescing: operations on ", device, " and ", *coalesced_->device,
                        " cannot be one group");
      coalesced_->device = device;
      coalesced_->messages &= c10d::isP2POp(operation.type);
      Operation& all = coalesced_->operation;
      for (Factor& factor : operation.factors) {
        factor.first += all.calls.size();
        factor.end += all.calls.size();
        all.factors.push_back(std::move(factor));
      }
      if (operation.timeout != c10d::kUnsetTimeout &&
          (all.timeout == c10d::kUnsetTimeout || operation.timeout < all.timeout))
        all.timeout = operation.timeout;
      all.calls.append(operation.calls.begin(), operation.calls.end());
      const auto add = [](Tensors& to, Tensors& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      add(all.tensors, operation.tensors);
      add(all.outputs, operation.outputs);
      all.blocks |= operation.blocks;
      return nullptr;
    }
  }
  if (estimating_.load(std::memory_order_relaxed)) [[unlikely]]
    return estimated(device, std::move(operation));
  return issue(group_lane(device), std::move(operation));
}

WorkPtr PyncclBackend::issue(Lane& lane, Operation operation) {
  const Ending::Call call;
  prepare(operation);
  const bool extended = extended_.load(std::memory_order_relaxed);
  if (extended) extend(operation);
  const auto timeout = timeout_of(operation);
  auto work = lane.issue(std::move(operation), rank_, timeout);
  if (!extended) return work;
  const std::scoped_lock lock(mutex_);
  for (Extension& extension : extensions_)
    if (!extension.first) extension.first = work;
  return work;
}

void PyncclBackend::prepare(Operation& operation) {
  const bool message = operation.messages || c10d::isP2POp(operation.type);
  operation.number = message ? ++messages_ : ++number_;
  operation.timed = timing_.load(std::memory_order_relaxed);
}

std::chrono::milliseconds PyncclBackend::timeout_of(const Operation& operation) const {
  return operation.timeout == c10d::kUnsetTimeout ? options_->timeout : operation.timeout;
}

void PyncclBackend::extend(Operation& operation) {
  std::vector<Extension> over;  // released without the lock
  const std::scoped_lock lock(mutex_);
  const auto begin =
      std::partition(extensions_.begin(), extensions_.end(),
                     [](const Extension& one) { return !one.first || !one.first->is_over(); });
  over.assign(std::make_move_iterator(begin), std::make_move_iterator(extensions_.end()));
  extensions_.erase(begin, extensions_.end());
  extended_ = !extensions_.empty();
  if (extensions_.empty()) return;
  operation.timeout = timeout_of(operation);
  for (const Extension& extension : extensions_) operation.timeout += extension.by;
}

bool PyncclBackend::sends_on_group(const at::Device& device) {
  const std::scoped_lock lock(mutex_);
  return coalesced_ || bound_device_id_ == device;
}

void PyncclBackend::startCoalescing() {
  const std::scoped_lock lock(mutex_);
  TORCH_CHECK_VALUE(!coalesced_, "coalescing: already started");
  coalesced_.emplace();
  coalescing_ = true;
}

std::optional<PyncclBackend::Coalesced> PyncclBackend::take_coalesced() {
  const std::scoped_lock lock(mutex_);
  coalescing_ = false;
  return std::exchange(coalesced_, std::nullopt);
}

WorkPtr PyncclBackend::endCoalescing() {
  std::optional<Coalesced> all = take_coalesced();
  TORCH_CHECK_VALUE(all, "coalescing: not started");
  if (!all->device) return nullptr;
  all->operation.type = c10d::OpType::COALESCED;
  all->operation.title = "pynccl:coalesced";
  all->operation.messages = all->messages;
  return issue(*all->device, std::move(all->operation));
}

void PyncclBackend::eagerConnectSingleDevice(at::Device device) {
  Lane& found = group_lane(with_index(device));
  without_gil([&] { found.connection().get(); });
}

py::object PyncclBackend::communicator(const at::Device& device) {
  return group_lane(with_index(device)).connection().communicator();
}

c10::intrusive_ptr<c10d::Backend> PyncclBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto own = derived(options);
  const at::Device device = bound_device_id_.value_or(at::Device(at::kCPU));
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  const int rank = found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  c10::intrusive_ptr<PyncclBackend> backend;
  const auto split_communicator = [&](Connection& connection) {
    const py::object child = connector()->attr("split")(connection.communicator(), ranks, rank,
                                                        store, **own->settings());
    if (child.is_none()) return;
    const py::tuple parts = child;  // the new group's connector and communicator
    backend =
        c10::make_intrusive<PyncclBackend>(parts[0], rank, static_cast<int>(ranks.size()), own);
    backend->group_lane(device).connection().adopt(parts[1]);
  };
  without_gil([&] {
    Lane& lane = group_lane(device);
    lane.connection().get();
    lane.run([&] { in_python([&] { split_communicator(lane.connection()); }); });
  });
  return backend;
}

void PyncclBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  const std::vector<Lane*> all = lanes();
  const py::gil_scoped_acquire gil;  // not while locking mutex_, which others do with the GIL
  connector()->attr("timeout") = seconds(timeout);
  for (Lane* lane : all) {
    const py::object communicator = lane->connection().communicator();
    if (!communicator.is_none()) communicator.attr("timeout") = seconds(timeout);
  }
}

#if PYNCCL_TORCH_SINCE(2, 14)
void PyncclBackend::addEphemeralTimeout(const std::chrono::milliseconds& timeout) {
  const std::scoped_lock lock(mutex_);
  extensions_.push_back({timeout, nullptr});
  extended_ = true;
}
#endif

#ifdef C10D_BACKEND_HAS_HOOKS
void PyncclBackend::registerAbortHook(std::int64_t id, c10d::AbortHook hook) {
  hooks_->add_failed(id, std::move(hook));
}

void PyncclBackend::unregisterAbortHook(std::int64_t id) { hooks_->remove_failed(id); }
#endif

#if PYNCCL_TORCH_SINCE(2, 15)
void PyncclBackend::registerCompletionHook(std::int64_t id, c10d::CompletionHook hook) {
  hooks_->add_completed(
      id, [hook = std::move(hook)](std::uint64_t key, std::optional<float> milliseconds) {
        hook({key, milliseconds});
      });
}

void PyncclBackend::unregisterCompletionHook(std::int64_t id) { hooks_->remove_completed(id); }
#endif

bool PyncclBackend::supportsTensorAlloc(c10::DeviceIndex index) {
  const at::Device device(index < 0 ? at::kCPU : at::kCUDA, index);
  return with_gil([&] { return connector()->attr("can_allocate")(device).cast<bool>(); });
}

at::Tensor PyncclBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(size >= 0, "size: expected a non-negative number of elements, got ", size);
  return in_python([&] {
    const auto dtype = c10::typeMetaToScalarType(options.dtype());
    return connector()->attr("allocate")(size, dtype, options.device()).cast<at::Tensor>();
  });
}

void PyncclBackend::abort() {
  without_gil([this] { end("it was aborted", false); });
}

void PyncclBackend::shutdown() {
  {
    const std::scoped_lock lock(mutex_);
    shut_down_ = true;
  }
  without_gil([this] { end("it was destroyed", true); });
}

at::Device PyncclBackend::device_of_collectives() {
  const std::scoped_lock lock(mutex_);
  for (const auto& [route, lane] : lanes_) {
    const Connection& connection = lane->connection();
    if (!connection.device().is_cpu() && !connection.is_pair() && connection.connected())
      return connection.device();
  }
  return at::Device(at::kCPU);
}

Held PyncclBackend::connector() const {
  const std::scoped_lock lock(mutex_);
  return connector_;
}

std::vector<Lane*> PyncclBackend::lanes() {
  const std::scoped_lock lock(mutex_);
  std::vector<Lane*> all;
  for (const auto& [route, lane] : lanes_) all.push_back(lane.get());
  return all;
}

// Cancels connections that wait for other ranks.
void PyncclBackend::cancel() {
  if (Py_IsInitialized()) with_gil([this] { connector()->attr("cancel")(); });
}

// drains: whether to finish pending operations first.
void PyncclBackend::end(const std::string& reason, bool drains) {
  {
    const std::scoped_lock lock(mutex_);
    if (ended_.empty()) ended_ = reason;
  }
  if (!drains) cancel();
  bool waits = drains;
  std::exception_ptr error;
  const auto grace = std::min(kGrace, options_->timeout);
  for (Lane* lane : lanes()) {
    if (lane->connection().take_failure()) hooks_->failed();
    bool done = false;
    try {
      const auto limit = lane->connection().device().is_cpu() ? grace : options_->timeout;
      done = waits && lane->drain(limit);
    } catch (...) {  // from a signal handler
      error = std::current_exception();
      waits = false;
    }
    try {
      lane->connection().end(done, reason);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (drains) cancel();
  if (error) std::rethrow_exception(error);
}

}  // namespace pynccl::dist
