// Communicator.borrow(), which is in pynccl/borrowing.py, and its steps.
#include "core/communicator.h"
#include "extension/capsule.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/objects/bind.h"
#include "python/objects/communicator.h"
#include "python/objects/group.h"

namespace pynccl::python {
namespace {

// pynccl.borrowing.borrow, which set_borrow() passes in. A reference for the life of the process.
PyObject* borrow_function = nullptr;

py::object borrow(const py::object& owner, const py::object& provider, const py::object& device) {
  if (!borrow_function) throw std::runtime_error("borrow: pynccl.borrowing is not imported");
  if (Group::active()) throw py::value_error("borrow: it cannot be called inside group()");
  return py::handle(borrow_function)(owner, provider, device);
}

// Calls a function of Python, which returns the handle as an integer; null where it raises.
std::function<ncclComm_t()> asker(const py::object& function) {
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
  Communicator::Owner from{nullptr, asker(ask), hold(owner)};
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

void bind_borrow(py::module_& m) {
  m.def(
      "set_borrow",
      [](const py::object& function) { borrow_function = py::object(function).release().ptr(); },
      py::arg("function"),
      R"(Set the function behind Communicator.borrow; pynccl.borrowing calls it on import.

Args:
    function: a function (owner, provider, device) that returns a Communicator.)");
  m.def("borrow_handle", &borrow_handle, py::arg("library"), py::arg("handle"), py::arg("owner"),
        py::arg("ask"),
        R"(Borrow an ncclComm_t; for pynccl.borrowing.

Args:
    library: the Library that the handle belongs to.
    handle: the ncclComm_t as an integer.
    owner: an object to keep; where it is a Communicator, the owner of the handle.
    ask: a function that returns the handle as long as its owner has not closed it; or None.

Returns:
    A Communicator.)");
  m.def("borrow_capsule", &borrow_capsule, py::arg("capsule"),
        R"(Borrow the communicator of a capsule of extension/capsule.h; for pynccl.borrowing.

Args:
    capsule: what __pynccl_communicator__() returns.

Returns:
    A Communicator.)");
  auto type = py::reinterpret_borrow<CommunicatorClass>(m.attr("Communicator"));
  type.def_static("borrow", &borrow, py::arg("owner"), py::kw_only(),
                  py::arg("provider") = py::none(), py::arg("device") = py::none(),
                  R"(Use a communicator that something else has made and frees.

    comm = nccl.Communicator.borrow(process_group)

The result has the methods of a Communicator, with time limits and a flight record of its own.
close(), the garbage collector and the end of the process only forget the handle; abort(),
finalize(), suspend(), resume() and register_pool() are refused. revoke(), recover(),
shrink(abort=True), a time limit that is over and an interrupted wait end the owner's operations,
too: they revoke the communicator, which its owner still has to free. With a library older than NCCL
2.28.7, a time limit that is over closes the borrowed communicator and leaves the owner's alone.

The owner is kept alive until close(). After it has closed its communicator, calls raise ValueError
where that can be known: of an integer it cannot, unless a Communicator of pynccl has that handle.
Operations of the owner and of the borrower are operations of one communicator: all ranks must issue
them in the same order.

Args:
    owner: a Communicator; a process group of pynccl; a process group of torch, or its backend
        (pynccl or nccl); a communicator of nccl4py or CuPy; an object with
        __pynccl_communicator__(); or an ncclComm_t as an integer.
    provider: of the handle, for owners other than pynccl's: "cuda", "host" or the path of a library.
        None is the libnccl.so.2 that is loaded in this process.
    device: of the communicator, for a process group: a torch.device, its name, or the number of a
        GPU. None is the group's only one, on GPUs the current one.

Returns:
    A Communicator.

Raises:
    TypeError: owner is none of these.
    ValueError: the owner has closed its communicator or has not made it yet; the handle belongs to
        another library; or the library or the device is not known.
    NcclError: the library does not know the handle.)");
}

}  // namespace pynccl::python
