// The classes Arena and PoolRegistration, of which pynccl.memory makes pools.
#include "core/arena.h"
#include "core/torch_allocator.h"
#include "python/objects/bind.h"

namespace pynccl::python {

void bind_arena(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;

  py::class_<Arena, std::unique_ptr<Arena, py::nodelete>> arena(
      m, "Arena",
      R"(Where the pools of pynccl.memory get their segments: ncclMemAlloc of a library.)");
  arena
      .def_static("of", &Arena::of, py::arg("library"), py::return_value_policy::reference,
                  "The arena of a library; there is one.")
      .def_property_readonly("library", &Arena::shared_library, "The library whose memory it is.")
      .def(
          "allocate",
          [](Arena& a, std::size_t size, int device) {
            return reinterpret_cast<std::uintptr_t>(a.allocate(size, device));
          },
          py::arg("size"), py::arg("device") = -1, Release(),
          "Allocates a segment of size bytes on a device, -1 being the current one; gives its "
          "address (ncclMemAlloc).")
      .def(
          "deallocate",
          [](Arena& a, std::uintptr_t address, int) {
            a.deallocate(reinterpret_cast<void*>(address));
          },
          py::arg("address"), py::arg("device") = -1, Release(),
          "Deregisters a segment and frees it (ncclMemFree).")
      .def("serve_torch", &set_torch_arena,
           "Makes this the arena of pynccl_torch_malloc and pynccl_torch_free, once in a process.");

  py::class_<Arena::Follower>(m, "PoolRegistration",
                              R"(A communicator's registration of the memory of pools.

close() deregisters everything (ncclCommDeregister); with the communicator's own close() it is over
as well.)",
                              py::release_gil_before_calling_cpp_dtor())
      .def(py::init<Arena&, const std::shared_ptr<Communicator>&>(), py::arg("arena"),
           py::arg("communicator"), Release())
      .def_property_readonly("segments", py::cpp_function(&Arena::Follower::segments, Release()),
                             "How many segments are registered.")
      .def_property_readonly("closed", py::cpp_function(&Arena::Follower::closed, Release()),
                             "Whether it was closed, or the communicator.")
      .def("close", &Arena::Follower::close, Release(),
           "Deregisters everything. Raises what NCCL answered if it refused a segment meanwhile.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](Arena::Follower& f, const py::args&) {
        const py::gil_scoped_release released;
        f.close();
      });
}

}  // namespace pynccl::python
