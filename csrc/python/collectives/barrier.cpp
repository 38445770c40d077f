// Communicator.barrier().
#include "comm/communicator.h"
#include "comm/device_memory.h"
#include "python/collectives/bind.h"

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
  const py::type type = py::type::of<Communicator>();
  const py::cpp_function method(
      &barrier, py::name("barrier"), py::is_method(type), py::kw_only(),
      py::arg("stream") = py::none(),
      R"(Wait in the order of a stream until all ranks have come to the same call (ncclAllReduce).

What a stream runs after it begins when the streams of all ranks have run what was before it: kernels
and functions that load from and store to the memory of other ranks can be ordered with it. On GPUs
the call itself returns immediately; synchronize the stream to wait for the ranks. It is an
all_reduce of one byte, may be part of a group, and is captured in graphs.

Args:
    stream: as for the collectives; None is the default stream, on CPUs the calling thread.

Raises:
    TypeError, ValueError: a wrong stream, or the communicator is closed.
    NcclError: NCCL failed, for example because a rank has died.)");
  py::setattr(type, "barrier", method);
}

}  // namespace pynccl::python
