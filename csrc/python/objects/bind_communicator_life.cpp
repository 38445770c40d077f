// What becomes of a communicator: whether it is ready, what went wrong, and giving up its
// operations or its memory.
#include "python/call/errors.h"
#include "python/objects/bind.h"
#include "python/objects/communicator.h"
#include "python/objects/group.h"

namespace pynccl::python {
namespace {

using Release = py::call_guard<py::gil_scoped_release>;

struct MemoryStats {
  std::uint64_t suspendable;
  std::uint64_t persistent;
  std::uint64_t total;
  bool suspended;
};

MemoryStats memory_stats(Communicator& c) {
  const py::gil_scoped_release released;
  return {c.memory_stat(ncclStatGpuMemSuspend), c.memory_stat(ncclStatGpuMemPersist),
          c.memory_stat(ncclStatGpuMemTotal), c.memory_stat(ncclStatGpuMemSuspended) != 0};
}

py::object async_error(Communicator& c) {
  const ncclResult_t state = c.async_error();
  std::string text = "communicator";
  if (c.known_rank() >= 0) text += " of rank " + std::to_string(c.known_rank());
  const Library& library = c.library();
  text += std::string(": ") + library.nccl<&NcclTable::ncclGetErrorString>()(state);
  const char* last =
      library.nccl<&NcclTable::ncclGetLastError>()(c.pending() ? nullptr : c.handle());
  if (last && *last) text += std::string(": ") + last;
  return error_object(state, "ncclCommGetAsyncError", c.known_rank(), text);
}

void wait_ready(Communicator& c, std::optional<double> timeout) {
  if (timeout && !(*timeout >= 0))
    throw py::value_error("timeout: " + std::to_string(*timeout) + " is below 0 seconds");
  const py::gil_scoped_release released;
  c.wait_ready(timeout);
}

}  // namespace

void bind_memory_stats(py::module_& m) {
  py::class_<MemoryStats>(m, "MemoryStats",
                          "What a communicator's memory comes to, in bytes (ncclCommMemStats).")
      .def_readonly("suspendable", &MemoryStats::suspendable,
                    "Allocated, and given back by suspend() (ncclStatGpuMemSuspend).")
      .def_readonly("persistent", &MemoryStats::persistent,
                    "Allocated, and kept by suspend() (ncclStatGpuMemPersist).")
      .def_readonly("total", &MemoryStats::total, "All of it (ncclStatGpuMemTotal).")
      .def_readonly("suspended", &MemoryStats::suspended,
                    "Whether it is suspended now (ncclStatGpuMemSuspended).")
      .def("__repr__", [](const MemoryStats& s) {
        return "MemoryStats(suspendable=" + std::to_string(s.suspendable) +
               ", persistent=" + std::to_string(s.persistent) +
               ", total=" + std::to_string(s.total) +
               ", suspended=" + (s.suspended ? "True)" : "False)");
      });
}

void add_life(CommunicatorClass& type) {
  type.def("get_unique_id", &Communicator::get_unique_id, Release(),
           R"(Make the id by which others join this communicator (ncclCommGetUniqueId, NCCL 2.29).

One rank makes it, passes it to grow() and carries it to those that call Communicator.join. It is
used up by one grow(); until then there is no second one.)")
      .def("revoke", &Communicator::revoke, Release(),
           R"(End what is under way, and keep the communicator (ncclCommRevoke, NCCL 2.28.7).

From any thread. An operation that blocks ends, later ones are refused with
NcclInvalidUsageError; what is left is split(), shrink(), close() and abort(). Every rank calls it;
on hostnccl an operation that waits for a rank which has ends with NcclRemoteError.)")
      .def(
          "suspend",
          [](const std::shared_ptr<Communicator>& c) {
            change(c, [](Communicator& suspended) { suspended.begin_suspend(); });
          },
          R"(Give back the memory that NCCL can do without (ncclCommSuspend, NCCL 2.29.7).

All ranks call it, when their operations are done; one thread with several ranks in group(). Until
resume() operations raise NcclInvalidUsageError.)")
      .def(
          "resume",
          [](const std::shared_ptr<Communicator>& c) {
            change(c, [](Communicator& resumed) { resumed.begin_resume(); });
          },
          "Makes a suspended communicator usable again (ncclCommResume, NCCL 2.29.7). All ranks "
          "call it.")
      .def("memory_stats", &memory_stats,
           R"(What this rank's part of the communicator holds now (ncclCommMemStats, NCCL 2.29.7).

Returns:
    MemoryStats, in bytes: of GPU memory, on CPUs of the shared memory.)")
      .def("async_error", &async_error,
           "The NcclError that the communicator met in the background, NcclInProgressError while "
           "it is being\n"
           "made, or None (ncclCommGetAsyncError).")
      .def_property_readonly(
          "ready", &Communicator::ready,
          "Whether a communicator with Config(blocking=0) has nothing under way: it is made, or "
          "what was\n"
          "called on it is done. Raises NcclError when it failed (ncclCommGetAsyncError).")
      .def("wait_ready", &wait_ready, py::arg("timeout") = py::none(),
           R"(Wait until a communicator with Config(blocking=0) is ready (ncclCommGetAsyncError).

Args:
    timeout: seconds; None is without end.

Raises:
    NcclTimeoutError: it is not ready in time; it goes on, and can be waited for again or aborted.
    NcclError: what NCCL does in the background failed.)");
}

}  // namespace pynccl::python
