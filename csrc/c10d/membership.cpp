// Changes of the group's ranks and state: merge, shrink, reconfigure, suspend; and state queries.
#include <pybind11/stl.h>

#include <algorithm>
#include <variant>

#include "backend.h"
#include "work.h"

namespace pynccl::dist {
namespace {

constexpr int kShrinkDefault = 0, kShrinkAbort = 1;  // torch's SHRINK_DEFAULT and SHRINK_ABORT

}  // namespace

std::vector<py::object> PyncclBackend::communicators() {
  std::vector<py::object> communicators;
  for (Lane* lane : lanes()) {
    py::object communicator = lane->connection().communicator();
    if (!communicator.is_none()) communicators.push_back(std::move(communicator));
  }
  return communicators;
}

c10::intrusive_ptr<PyncclOptions> PyncclBackend::derived(
    const c10::intrusive_ptr<c10d::Backend::Options>& options) const {
  const auto given = c10::dynamic_intrusive_pointer_cast<PyncclOptions>(options);
  TORCH_CHECK_TYPE(given, "options: expected the options of pynccl, got those of ",
                   options ? options->backend : "no backend");
  auto own = c10::make_intrusive<PyncclOptions>(*given);
  // Without a copy, torch has written the new group's options into this group's.
  if (given == options_) {
    if (!getGroupUid().empty()) options_->group_name = getGroupUid();
    const auto own_limit = std::chrono::duration<double>(
        in_python([this] { return connector()->attr("timeout").cast<double>(); }));
    options_->timeout = std::chrono::duration_cast<std::chrono::milliseconds>(own_limit);
  }
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  own->enable_reconfigure = false;  // the new group already has its ranks
#endif
  return own;
}

// Waits for pending operations.
void PyncclBackend::drain(const char* what) {
  const auto until = std::chrono::steady_clock::now() + options_->timeout;
  for (Lane* lane : lanes()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (!lane->drain(std::max(left, std::chrono::milliseconds(0))))
      throw_backend_error(std::string(what) + ": operations are still running after " +
                          std::to_string(options_->timeout.count()) + " ms");
  }
}

// The ranks rendezvous through the store at the first operation.
c10::intrusive_ptr<c10d::Backend> PyncclBackend::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& options, const int& rank, const int& size) {
  const auto own = derived(options);
  TORCH_CHECK_VALUE(size > 0, "size: ", size, " is below 1");
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, "rank: ", rank, " is not in [0, ", size, ")");
  return in_python([&] {
    const py::object connector =
        py::type::of(*this->connector())(store, rank, size, **own->settings());
    return c10::make_intrusive<PyncclBackend>(connector, rank, size, own);
  });
}

std::vector<int> PyncclBackend::checked_exclusion(const std::vector<std::int64_t>& ranks,
                                                  int flags) const {
  TORCH_CHECK_VALUE(flags == kShrinkDefault || flags == kShrinkAbort, "shrink_flags: ", flags,
                    " is neither SHRINK_DEFAULT (0) nor SHRINK_ABORT (1)");
  TORCH_CHECK_VALUE(!ranks.empty(), "ranks_to_exclude: expected at least one rank");
  std::vector<int> excluded;
  for (const std::int64_t rank : ranks) {
    TORCH_CHECK_VALUE(rank >= 0 && rank < size_, "ranks_to_exclude: the group has ranks 0 to ",
                      size_ - 1, ", got ", rank);
    TORCH_CHECK_VALUE(rank != rank_, "ranks_to_exclude: ", rank, " is this rank");
    excluded.push_back(static_cast<int>(rank));
  }
  std::sort(excluded.begin(), excluded.end());
  TORCH_CHECK_VALUE(std::adjacent_find(excluded.begin(), excluded.end()) == excluded.end(),
                    "ranks_to_exclude: a rank is repeated");
  return excluded;
}

// Pair communicators are not shrunk; the new group creates its own.
c10::intrusive_ptr<c10d::Backend> PyncclBackend::shrink(
    const std::vector<std::int64_t>& ranks_to_exclude, int shrink_flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts_override) {
  const std::vector<int> excluded = checked_exclusion(ranks_to_exclude, shrink_flags);
  const auto own = derived(opts_override ? opts_override : getBackendOptions());
  const bool aborts = shrink_flags == kShrinkAbort;
  std::vector<std::uint64_t> global_ranks;
  int rank = 0, size = 0;
  for (int old = 0; old < size_; ++old) {
    if (std::binary_search(excluded.begin(), excluded.end(), old)) continue;
    const auto o = static_cast<std::size_t>(old);
    const auto& known = options_->global_ranks_in_group;
    global_ranks.push_back(o < known.size() ? known[o] : o);
    if (old < rank_) ++rank;
    ++size;
  }
  own->global_ranks_in_group = std::move(global_ranks);
  const Held old = connector();
  // Before anything that can fail on one rank alone, because the ranks count the attempts.
  const Held next =
      in_python([&] { return hold(old->attr("shrunk")(excluded, rank, **own->settings())); });
  std::vector<std::pair<at::Device, Lane*>> shrunk;
  {
    const std::scoped_lock lock(mutex_);
    check_usable();
    for (const auto& [route, lane] : lanes_)
      if (std::get<2>(route) < 0) shrunk.emplace_back(lane->connection().device(), lane.get());
  }
  if (!aborts) without_gil([this] { drain("shrink"); });
  c10::intrusive_ptr<PyncclBackend> backend;
  try {
    in_python([&] {
      backend = c10::make_intrusive<PyncclBackend>(*next, rank, size, own);
      backend->setBoundDeviceId(bound_device_id_);
      for (const auto& [device, lane] : shrunk) {
        const py::object communicator = lane->connection().communicator();
        if (communicator.is_none()) continue;
        if (aborts) lane->connection().give_up();
        const py::object child = old->attr("shrink")(
            communicator, excluded, py::arg("aborts") = aborts, py::arg("to") = *next);
        if (!child.is_none()) backend->group_lane(device).connection().adopt(child);
      }
    });
  } catch (const std::exception& error) {
    if (backend) backend->abort();
    throw;
  }
  return backend;
}

void PyncclBackend::retire(const std::string& reason, const std::string& waits) {
  std::vector<Lane*> old;
  std::optional<Coalesced> coalesced;  // destroyed without the lock
  {
    const std::scoped_lock lock(mutex_);
    waits_ = waits;
    suspended_ = false;
    host_lane_ = nullptr;
    coalescing_ = false;
    std::swap(coalesced, coalesced_);
    for (auto& [route, lane] : lanes_) {
      old.push_back(lane.get());
      retired_.push_back(std::move(lane));
    }
    lanes_.clear();
    ++configuration_;
  }
  std::exception_ptr first;
  const auto attempt = [&first](auto&& body) {
    try {
      body();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  };
  for (Lane* lane : old) lane->connection().give_up();
  attempt([this] { cancel(); });
  for (Lane* lane : old) {
    attempt([&] {
      in_python([&] {
        const py::object communicator = lane->connection().communicator();
        if (!communicator.is_none()) connector()->attr("revoke")(communicator);
      });
    });
  }
  for (Lane* lane : old) {
    attempt([&] { lane->connection().end(false, reason); });
    lane->retire();
  }
  if (first) std::rethrow_exception(first);
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE

c10d::ReconfigureHandle PyncclBackend::get_reconfigure_handle() const {
  return in_python([this] { return connector()->attr("handle").cast<std::string>(); });
}

WorkPtr PyncclBackend::reconfigure(const c10d::ReconfigureOptions& options) {
  const std::unique_lock turn(changing_, std::try_to_lock);
  if (!turn) throw_backend_error("reconfigure: another thread is reconfiguring the group");
  {
    const std::scoped_lock lock(mutex_);
    if (shut_down_) throw_backend_error("the process group is closed: " + ended_);
  }
  const auto limit = options.timeout.value_or(options_->timeout);
  TORCH_CHECK_VALUE(limit.count() > 0, "timeout: ", limit.count(), " ms is not above 0");
  int rank = 0, size = 0;
  Held next = in_python([&] {
    const py::object handles = std::visit(
        [](const auto& given) -> py::object { return py::cast(given); }, options.handles);
    const py::tuple parts = connector()->attr("reconfigured")(options.uuid, handles, options.hints);
    parts[0].attr("timeout") = seconds(limit);
    rank = parts[1].cast<int>();
    size = parts[2].cast<int>();
    return hold(parts[0]);
  });
  without_gil([&] {
    const std::string failed =
        "The last reconfiguration of the process group failed. Call reconfigure() again, with "
        "another uuid.";
    try {
      retire("it was reconfigured", "The process group is being reconfigured.");
      {
        const std::scoped_lock lock(mutex_);
        std::swap(connector_, next);
      }
      in_python([this] { connector()->attr("meet")(); });
      {
        const std::scoped_lock lock(mutex_);
        if (shut_down_) throw_backend_error("the process group is closed: " + ended_);
        waits_.clear();
        ended_.clear();
        rank_ = rank;
        size_ = size;
        number_ = 0;
        messages_ = 0;
      }
      // If the device is unknown, the ranks connect at the first operation.
      if (bound_device_id_ || !at::hasCUDA())
        group_lane(bound_device_id_.value_or(at::Device(at::kCPU))).connection().get();
    } catch (...) {
      retire("its reconfiguration failed", failed);
      throw;
    }
  });
  setTimeout(options_->timeout);
  Operation operation;
  operation.title = "pynccl:reconfigure";
  auto work = c10::make_intrusive<HostWork>(rank_, operation, limit, nullptr);
  work->settle(nullptr);
  return work;
}

#endif

#if PYNCCL_TORCH_SINCE(2, 13)

void PyncclBackend::suspend_or_resume(bool suspends) {
  const char* what = suspends ? "suspend" : "resume";
  const std::unique_lock turn(changing_, std::try_to_lock);
  if (!turn) throw_backend_error(std::string(what) + ": another thread is changing the group");
  {
    const std::scoped_lock lock(mutex_);
    check_open();
    if (suspended_ == suspends)
      throw_backend_error(std::string(what) + (suspends ? ": the process group is suspended already"
                                                        : ": the process group is not suspended"));
    if (suspends) {
      if (!waits_.empty()) throw_backend_error(waits_);
      waits_ = "The process group is suspended; call resume() first.";
      host_lane_ = nullptr;
    }
    suspended_ = suspends;
  }
  const auto make_usable = [this] {
    const std::scoped_lock lock(mutex_);
    suspended_ = false;
    waits_.clear();
  };
  try {
    if (suspends) without_gil([this] { drain("suspend"); });
    in_python([&] { connector()->attr(what)(communicators()); });
  } catch (...) {
    if (suspends) {
      make_usable();
    } else {
      const std::scoped_lock lock(mutex_);
      suspended_ = true;
    }
    throw;
  }
  if (!suspends) make_usable();
}

void PyncclBackend::suspend() { suspend_or_resume(true); }

void PyncclBackend::resume() { suspend_or_resume(false); }

std::unordered_map<std::string, std::uint64_t> PyncclBackend::getMemoryStats() {
  return in_python([this] {
    return connector()
        ->attr("memory_stats")(communicators())
        .cast<std::unordered_map<std::string, std::uint64_t>>();
  });
}

#endif

// Whether operations can be issued. torch refuses to split an uninitialized group, but here split()
// creates a missing communicator.
bool PyncclBackend::isInitialized() {
  const std::scoped_lock lock(mutex_);
  return ended_.empty() && waits_.empty();
}

c10d::ErrorType PyncclBackend::getError() {
  return in_python([this] {
    for (const py::object& communicator : communicators()) {
      const auto error = connector()->attr("error")(communicator).cast<std::string>();
      if (error == "TIMEOUT") return c10d::ErrorType::TIMEOUT;
      if (error == "REMOTE_ERROR") return c10d::ErrorType::REMOTE_ERROR;
      if (!error.empty()) return c10d::ErrorType::COMM_ERROR;
    }
    return c10d::ErrorType::SUCCESS;
  });
}

void PyncclBackend::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  if (uid == options_->group_name) return;
  options_->group_name = uid;
  in_python([&] { connector()->attr("rename")(uid, communicators()); });
}

void PyncclBackend::waitForPendingWorks() {
  without_gil([this] { drain("waitForPendingWorks"); });
}

}  // namespace pynccl::dist
