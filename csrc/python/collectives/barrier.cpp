// Communicator.barrier().
#include "comm/communicator.h"
#include "comm/device_memory.h"
#include "python/call/bind.h"

namespace pynccl::python {
namespace {

void barrier(const py::object& self, const py::object& stream) {
  auto& communicator = self.cast<Communicator&>();
  const auto allocate = [&communicator, device = communicator.device()] {
    return allocate_shared(communicator.shared_library(), device, 1);
  };
  const auto address = reinterpret_cast<std::uintptr_t>(communicator.barrier_memory(allocate));
  self.attr("all_reduce")(address, py::arg("count") = 1, py::arg("dtype") = "uint8",
                          py::arg("stream") = stream);
}

}  // namespace

void bind_barrier(py::module_&) {
  add_method<Communicator>("barrier", &barrier, py::kw_only(), py::arg("stream") = py::none(),
                           R"(Synchronize the streams of all ranks with each other (ncclAllReduce).

Work enqueued after the barrier starts when the streams of all ranks have completed the work before
it. Use it to order kernels and functions that load from and store to the memory of other ranks. On
GPUs the call returns immediately; synchronize the stream to block the host as well. The barrier is
an all_reduce of one byte. It can be part of a group and can be captured into a graph.

Args:
    stream: as for the collectives. None is the default stream, on CPUs the calling thread.

Raises:
    TypeError, ValueError: an invalid stream, or the communicator is closed.
    NcclError: NCCL failed, for example because a rank died.)");
}

}  // namespace pynccl::python
