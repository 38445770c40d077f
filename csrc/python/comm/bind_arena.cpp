// The classes Arena and PoolRegistration, for pynccl.memory.
#include "comm/arena.h"
#include "python/call/bind.h"
#include "python/call/gil.h"

namespace pynccl::python {

void bind_arena(py::module_& m) {
  using Release = py::call_guard<GilReleased>;

  py::class_<Arena, std::unique_ptr<Arena, py::nodelete>> arena(
      m, "Arena", R"(The allocator of the segments of pynccl.memory's pools (ncclMemAlloc).)");
  arena
      .def_static("of", &Arena::of, py::arg("library"), py::return_value_policy::reference,
                  "Return the arena of a library; there is one per library.")
      .def_property_readonly("library", &Arena::shared_library,
                             "The library that allocates its memory.")
      .def(
          "allocate",
          [](Arena& a, std::size_t size, int device) {
            return reinterpret_cast<std::uintptr_t>(a.allocate(size, device));
          },
          py::arg("size"), py::arg("device") = -1, Release(),
          "Allocate a segment of size bytes on a device (-1: the current one) and return its "
          "address (ncclMemAlloc).")
      .def(
          "deallocate",
          [](Arena& a, std::uintptr_t address, int) {
            a.deallocate(reinterpret_cast<void*>(address));
          },
          py::arg("address"), py::arg("device") = -1, Release(),
          "Deregister a segment and free it (ncclMemFree).")
      .def("serve_torch", &Arena::serve_torch,
           "Use this arena for pynccl_torch_malloc and pynccl_torch_free. Once per process.");

  py::class_<Arena::PoolRegistration> registration(
      m, "PoolRegistration",
      R"(The registration of memory pools with a communicator (ncclCommRegister).

close() deregisters all segments (ncclCommDeregister). So does closing the communicator.)",
      py::release_gil_before_calling_cpp_dtor());
  add_closing(registration);
  registration
      .def(py::init<Arena&, const std::shared_ptr<Communicator>&>(), py::arg("arena"),
           py::arg("communicator"), Release())
      .def_property_readonly("segments",
                             py::cpp_function(&Arena::PoolRegistration::segments, Release()),
                             "The number of registered segments.")
      .def_property_readonly("closed",
                             py::cpp_function(&Arena::PoolRegistration::closed, Release()),
                             "Whether the registration or the communicator is closed.")
      .def("close", &Arena::PoolRegistration::close, Release(),
           "Deregister all segments. Closing twice is allowed.\n\nRaises:\n    NcclError: a "
           "segment could not be registered when it was allocated.");
}

}  // namespace pynccl::python
