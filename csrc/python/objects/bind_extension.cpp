// What a Communicator is for code that is not ours: the capsule of extension/capsule.h, and the
// memory of frameworks' pools.
#include <atomic>

#include "core/communicator.h"
#include "extension/capsule.h"
#include "python/objects/bind.h"

namespace pynccl::python {
namespace {

// What the capsule points to, with its owner: the Python object, so that all that it keeps alive
// (the parent of a split) stays as well.
struct Exported final : PyncclCommunicator {
  Exported(const py::object& object, Communicator& c)
      : PyncclCommunicator{sizeof(PyncclCommunicator),
                           &Exported::take,
                           &Exported::drop,
                           &Exported::find_handle,
                           &Exported::find_function,
                           &Exported::find_driver_function,
                           c.rank(),
                           c.nranks(),
                           c.device(),
                           c.library().version(),
                           c.library().memory() == Memory::kDevice,
                           c.library().path().c_str()},
        owner(object),
        communicator(c) {}

  static void take(PyncclCommunicator* self) { ++static_cast<Exported*>(self)->references; }

  static void drop(PyncclCommunicator* self) {
    auto* exported = static_cast<Exported*>(self);
    if (--exported->references != 0) return;
    if (!Py_IsInitialized()) return;  // too late for everything
    const py::gil_scoped_acquire gil;
    delete exported;
  }

  static void* find_handle(const PyncclCommunicator* self) {
    return static_cast<const Exported*>(self)->communicator.handle_or_null();
  }

  static void* find_function(const PyncclCommunicator* self, const char* name) {
    return static_cast<const Exported*>(self)->communicator.library().symbol(name);
  }

  static void* find_driver_function(const PyncclCommunicator* self, const char* name) {
    try {
      return static_cast<const Exported*>(self)->communicator.library().driver_symbol(name);
    } catch (const std::exception&) {  // there is no driver, and C has no exceptions
      return nullptr;
    }
  }

  std::atomic<int> references = 1;
  py::object owner;
  Communicator& communicator;
};

py::capsule capsule_of(const py::object& self) {
  auto& communicator = py::cast<Communicator&>(self);
  communicator.handle();  // throws unless it is open
  auto exported = std::make_unique<Exported>(self, communicator);
  py::capsule capsule(
      static_cast<PyncclCommunicator*>(exported.get()), PYNCCL_CAPSULE_NAME, [](PyObject* object) {
        auto* pointer =
            static_cast<PyncclCommunicator*>(PyCapsule_GetPointer(object, PYNCCL_CAPSULE_NAME));
        pointer->release(pointer);
      });
  exported.release();
  return capsule;
}

}  // namespace

void bind_extension(py::module_& m) {
  const py::object type = m.attr("Communicator");
  const char* name = "__pynccl_communicator__";
  type.attr(name) = py::cpp_function(&capsule_of, py::name(name), py::is_method(type),
                                     R"(Give the communicator to C++: a capsule that pynccl.h takes.

The capsule keeps this object alive, not open: from C++, a communicator that was closed meanwhile is
an exception. See pynccl.get_include().)");
  name = "register_pool";
  type.attr(name) = py::cpp_function(
      [](const py::object& self, const py::object& pool) {
        return py::module_::import("pynccl.memory").attr("register_pool")(self, pool);
      },
      py::name(name), py::is_method(type), py::arg("pool"),
      R"(Register the memory of a pool for transfers without a copy (ncclCommRegister).

Args:
    pool: from pynccl.memory.torch_pool() or cupy_pool().

Returns:
    A PoolRegistration, which need not be kept: it lasts until it or the communicator is closed. See
    pynccl.memory.register_pool.)");
}

}  // namespace pynccl::python
