// The C++ parts of Communicator.borrow() and recover(), for pynccl/_internal/borrowing.py and
// recovery.py.
#include "comm/communicator.h"
#include "extension/capsule.h"
#include "python/call/bind.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/comm/communicator.h"
#include "python/comm/group.h"

namespace pynccl::python {
namespace {

// Wraps a Python function that returns the handle as an integer. The result is null if it raises.
std::function<ncclComm_t()> handle_getter(const py::object& function) {
  if (function.is_none()) return {};
  return [function = hold(function)]() -> ncclComm_t {
    const GilAcquired gil;
    const py::error_scope raised;  // an exception may be set
    try {
      const py::object answer = py::handle(static_cast<PyObject*>(function.get()))();
      return reinterpret_cast<ncclComm_t>(py::cast<std::uintptr_t>(answer));
    } catch (const std::exception&) {
      return nullptr;
    }
  };
}

std::shared_ptr<Communicator> borrow_from(const std::shared_ptr<Library>& library, ncclComm_t comm,
                                          Communicator::Owner owner) {
  const GilReleased released;
  if (!owner.communicator) owner.communicator = Communicator::find(*library, comm);
  if (!owner.communicator && owner.ask && owner.ask() != comm)
    throw std::invalid_argument("borrow: the communicator is closed");
  auto borrowed = std::make_shared<Communicator>(library, Communicator::Options{});
  borrowed->borrow(comm, std::move(owner));
  return borrowed;
}

std::shared_ptr<Communicator> borrow_handle(const std::shared_ptr<Library>& library,
                                            std::uintptr_t handle, const py::object& owner,
                                            const py::object& ask) {
  Communicator::Owner from{nullptr, handle_getter(ask), hold(owner)};
  if (py::isinstance<Communicator>(owner))
    from.communicator = py::cast<std::shared_ptr<Communicator>>(owner);
  return borrow_from(library, reinterpret_cast<ncclComm_t>(handle), std::move(from));
}

std::shared_ptr<Communicator> borrow_capsule(const py::object& capsule) {
  void* pointer = PyCapsule_GetPointer(capsule.ptr(), PYNCCL_CAPSULE_NAME);
  if (!pointer) throw py::error_already_set();
  auto* target = static_cast<PyncclCommunicator*>(pointer);
  const auto library = Library::open(target->path);
  void* comm = target->handle(target);
  if (!comm) throw py::value_error("borrow: the communicator is closed");
  target->retain(target);
  const std::shared_ptr<PyncclCommunicator> held(
      target, [](PyncclCommunicator* released) { released->release(released); });
  const auto ask = [held] { return static_cast<ncclComm_t>(held->handle(held.get())); };
  return borrow_from(library, static_cast<ncclComm_t>(comm), {nullptr, ask, hold(capsule)});
}

}  // namespace

void bind_internal(py::module_& m) {
  m.def("borrow_handle", &borrow_handle, py::arg("library"), py::arg("handle"), py::arg("owner"),
        py::arg("ask"),
        "Borrow an ncclComm_t. owner: an object to keep alive; if it is a Communicator, it owns "
        "the handle. ask: a function that returns the handle until its owner closes it, or None.");
  m.def("borrow_capsule", &borrow_capsule, py::arg("capsule"),
        "Borrow the communicator of a capsule from __pynccl_communicator__().");
  m.def(
      "check_outside_group",
      [](const std::string& method) {
        if (Group::active()) throw py::value_error(method + ": it cannot be called inside group()");
      },
      py::arg("method"), "Raise ValueError, with the name of a method, inside group().");
  m.def(
      "can_agree",
      [](const Communicator& c) { return c.library().symbol("hostCommAgree") != nullptr; },
      py::arg("communicator"), "Whether the library can agree on the surviving ranks.");
  m.def("begin_recovery", &Communicator::begin_recovery, py::arg("communicator"),
        py::call_guard<GilReleased>(),
        "Revoke a communicator if NCCL supports it and it is not revoked yet.");
  m.def("agree", &Communicator::agree, py::arg("communicator"), py::arg("seconds"), py::arg("lost"),
        py::call_guard<GilReleased>(),
        "Let the library agree on the surviving ranks, and wait at most these seconds for ranks "
        "that are not in lost. Returns the lost ranks; None if the library cannot agree.");
}

}  // namespace pynccl::python
