// The state of a communicator: readiness, errors, memory; revoke, suspend and resume.
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/objects/bind.h"
#include "python/objects/communicator.h"
#include "python/objects/group.h"

namespace pynccl::python {
namespace {

using Release = py::call_guard<GilReleased>;

struct MemoryStats {
  std::uint64_t suspendable;
  std::uint64_t persistent;
  std::uint64_t total;
  bool suspended;
};

MemoryStats memory_stats(Communicator& c) {
  const GilReleased released;
  return {c.memory_stat(ncclStatGpuMemSuspend), c.memory_stat(ncclStatGpuMemPersist),
          c.memory_stat(ncclStatGpuMemTotal), c.memory_stat(ncclStatGpuMemSuspended) != 0};
}

py::object async_error(Communicator& c) {
  const ncclResult_t state = c.async_error();
  std::string text = "communicator";
  if (c.known_rank() >= 0) text += " of rank " + std::to_string(c.known_rank());
  const Library& library = c.library();
  text += std::string(": ") + library.nccl<&NcclTable::ncclGetErrorString>()(state);
  const char* last = library.nccl<&NcclTable::ncclGetLastError>()(c.handle_or_null());
  if (last && *last) text += std::string(": ") + last;
  return error_object(state, "ncclCommGetAsyncError", c.known_rank(), text);
}

void wait_ready(Communicator& c, std::optional<double> timeout) {
  if (timeout && !(*timeout >= 0))
    throw py::value_error("timeout: " + std::to_string(*timeout) + " is below 0 seconds");
  const GilReleased released;
  c.wait_ready(timeout);
}

}  // namespace

void bind_memory_stats(py::module_& m) {
  py::class_<MemoryStats>(m, "MemoryStats",
                          "The memory of a communicator in bytes (ncclCommMemStats).")
      .def_readonly("suspendable", &MemoryStats::suspendable,
                    "The bytes that suspend() releases (ncclStatGpuMemSuspend).")
      .def_readonly("persistent", &MemoryStats::persistent,
                    "The bytes that suspend() keeps (ncclStatGpuMemPersist).")
      .def_readonly("total", &MemoryStats::total, "All allocated bytes (ncclStatGpuMemTotal).")
      .def_readonly("suspended", &MemoryStats::suspended,
                    "Whether the communicator is suspended (ncclStatGpuMemSuspended).")
      .def("__repr__", [](const MemoryStats& s) {
        return "MemoryStats(suspendable=" + std::to_string(s.suspendable) +
               ", persistent=" + std::to_string(s.persistent) +
               ", total=" + std::to_string(s.total) +
               ", suspended=" + (s.suspended ? "True)" : "False)");
      });
}

void add_life(CommunicatorClass& type) {
  type.def(
          "get_unique_id", &Communicator::get_unique_id, Release(),
          R"(Make the id with which new ranks join this communicator (ncclCommGetUniqueId, NCCL 2.29).

One rank makes it, passes it to grow() and sends it to the new ranks, which pass it to
Communicator.join(). An id serves one grow(); a second one cannot be made before that.

Returns:
    A UniqueId.

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.29.
    NcclError: there is an unused id already, or NCCL failed.)")
      .def(
          "revoke", &Communicator::revoke, Release(),
          R"(Abort the operations in progress and keep the communicator (ncclCommRevoke, NCCL 2.28.7).

Every rank calls it, once; any thread can. Blocked operations return, and later ones raise
NcclInvalidUsageError; only split(), shrink(), close() and abort() can follow. On GPUs operations
that are interrupted end as if they were done, with incomplete data; Work.wait() of the mirror raises
for them. NCCL waits for the work that precedes the operations on their streams; if that is a hung
operation of another communicator, revoke that communicator, too. On hostnccl an operation that waits
for a revoked rank raises NcclRemoteError. Revoking a borrowed communicator also ends its owner's
operations.

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.7.
    NcclTimeoutError: NCCL takes longer than the time limit, and continues in the background.
    NcclError: NCCL failed, or has revoked or finalized the communicator before.)")
      .def(
          "suspend",
          [](const std::shared_ptr<Communicator>& c) {
            change_communicator(c, [](Communicator& suspended) { suspended.begin_suspend(); });
          },
          R"(Release the memory that a suspended communicator does not need (ncclCommSuspend, NCCL 2.29.7).

All ranks call it, after their operations are done; a thread with several ranks calls it inside
group(). Until resume() operations raise NcclInvalidUsageError.

Raises:
    ValueError: the communicator is closed or borrowed.
    MissingFunctionError: the library is older than NCCL 2.29.7.
    NcclError: it is suspended already, operations are in progress, or NCCL failed.)")
      .def(
          "resume",
          [](const std::shared_ptr<Communicator>& c) {
            change_communicator(c, [](Communicator& resumed) { resumed.begin_resume(); });
          },
          R"(Make a suspended communicator usable again (ncclCommResume, NCCL 2.29.7).

All ranks call it; a thread with several ranks calls it inside group().

Raises:
    ValueError: the communicator is closed or borrowed.
    MissingFunctionError: the library is older than NCCL 2.29.7.
    NcclError: it is not suspended, or NCCL failed.)")
      .def(
          "memory_stats", &memory_stats,
          R"(The memory that this rank's part of the communicator has allocated (ncclCommMemStats, NCCL 2.29.7).

Returns:
    MemoryStats, in bytes: of GPU memory, on CPUs of shared memory.

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.29.7.
    NcclError: NCCL failed.)")
      .def("async_error", &async_error,
           R"(The error of the communicator's background work (ncclCommGetAsyncError).

Returns:
    An NcclError, not raised; NcclInProgressError while the communicator is not ready; None where
    there is no error.

Raises:
    ValueError: the communicator is closed.)")
      .def_property_readonly(
          "ready", &Communicator::ready,
          "Whether a communicator with Config(blocking=0) is made and its calls are done "
          "(ncclCommGetAsyncError).\n\nRaises:\n    NcclError: the background work failed.")
      .def("wait_ready", &wait_ready, py::arg("timeout") = py::none(),
           R"(Wait until a communicator with Config(blocking=0) is ready (ncclCommGetAsyncError).

Args:
    timeout: the time limit in seconds; None is no limit.

Raises:
    ValueError: timeout is negative, or the communicator is closed.
    NcclTimeoutError: it is not ready in time. The background work continues: wait again or abort.
    NcclError: the background work failed.)");
}

}  // namespace pynccl::python
