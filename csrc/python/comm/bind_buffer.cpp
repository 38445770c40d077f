// The class Buffer, and Arena and PoolRegistration for pynccl.memory.
#include <dlpack/dlpack.h>

#include <vector>

#include "comm/arena.h"
#include "python/call/bind.h"
#include "python/call/gil.h"
#include "python/convert/buffer.h"

namespace pynccl::python {
namespace {

// The contents of a DLPack capsule: the struct for the consumer and a reference to the Buffer.
template <class Managed>
struct Export {
  Managed managed{};
  py::object owner;
  std::vector<std::int64_t> strides;  // required since DLPack 1.2

  explicit Export(py::object buffer) : owner(std::move(buffer)) {
    const auto& source = py::cast<const Buffer&>(owner);
    DLTensor& tensor = managed.dl_tensor;
    tensor.data = source.data();
    tensor.device = {static_cast<DLDeviceType>(source.device_type()), source.device_id()};
    tensor.ndim = static_cast<int>(source.shape().size());
    tensor.dtype = {source.dtype().code, source.dtype().bits, 1};
    tensor.shape = const_cast<std::int64_t*>(source.shape().data());
    strides.resize(source.shape().size());
    std::int64_t stride = 1;
    for (std::size_t i = strides.size(); i-- > 0; stride *= source.shape()[i]) strides[i] = stride;
    tensor.strides = strides.data();
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) {
      if (!Py_IsInitialized()) return;  // Python objects can no longer be released
      const GilAcquired gil;
      delete static_cast<Export*>(self->manager_ctx);
    };
  }
};

template <class Managed>
py::capsule capsule_of(py::object buffer, const char* name) {
  auto exported = std::make_unique<Export<Managed>>(std::move(buffer));
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>)
    exported->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  py::capsule capsule(&exported->managed, name, [](PyObject* self) {
    // A consumer that takes ownership of the struct renames the capsule.
    const char* current = PyCapsule_GetName(self);
    if (std::string_view(current).starts_with("used_")) return;
    auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(self, current));
    managed->deleter(managed);
  });
  exported.release();
  return capsule;
}

py::tuple device_of(const Buffer& buffer) {
  return py::make_tuple(buffer.device_type(), buffer.device_id());
}

py::capsule to_dlpack(const py::object& self, const py::object&, const py::object& max_version,
                      const py::object& dl_device, const py::object& copy) {
  if (!dl_device.is_none() && !dl_device.equal(device_of(py::cast<const Buffer&>(self))))
    throw py::buffer_error("dl_device: a Buffer cannot be exported to another device, got " +
                           std::string(py::repr(dl_device)));
  if (py::cast<bool>(copy))  // None is false
    throw py::buffer_error("copy: a Buffer cannot be exported as a copy");
  if (!max_version.is_none() && py::cast<int>(py::cast<py::tuple>(max_version)[0]) >= 1)
    return capsule_of<DLManagedTensorVersioned>(self, "dltensor_versioned");
  return capsule_of<DLManagedTensor>(self, "dltensor");
}

}  // namespace

void bind_buffer(py::module_& m) {
  using Release = py::call_guard<GilReleased>;
  py::class_<Buffer, std::shared_ptr<Buffer>>(
      m, "Buffer",
      R"(Memory from ncclMemAlloc with a shape and a dtype; created by Communicator.mem_alloc().

torch.from_dlpack(buffer), numpy.from_dlpack(buffer) and cupy.from_dlpack(buffer) create tensors on
this memory without a copy. Collectives accept the buffer directly. When the last reference is gone,
or after close(), the memory is freed in the background, once the work enqueued on its device until
then is done. No tensor may use the memory after close().)",
      py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly(
          "ptr", [](const Buffer& b) { return reinterpret_cast<std::uintptr_t>(b.data()); },
          "The address as an integer.")
      .def_property_readonly(
          "shape", [](const Buffer& b) { return py::tuple(py::cast(b.shape())); },
          "The shape in elements.")
      .def_property_readonly(
          "dtype", [](const Buffer& b) { return b.dtype().name; }, "The name of the element type.")
      .def_property_readonly("nbytes", &Buffer::nbytes, "The size in bytes.")
      .def_property_readonly("device", &Buffer::device_id, "The device's ordinal.")
      .def("close", &Buffer::close, Release(),
           "Free the memory once the work on its device is done (ncclMemFree). Closing twice is "
           "allowed.")
      .def("__dlpack_device__", &device_of)
      .def("__dlpack__", &to_dlpack, py::kw_only(), py::arg("stream") = py::none(),
           py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
           py::arg("copy") = py::none());

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
