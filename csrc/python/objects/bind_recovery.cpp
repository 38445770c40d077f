// Communicator.recover(), which is in pynccl/recovery.py, and its steps.
#include "python/call/gil.h"
#include "python/objects/bind.h"
#include "python/objects/communicator.h"
#include "python/objects/group.h"

namespace pynccl::python {
namespace {

// pynccl.recovery.recover, which set_recover() passes in. A reference for the life of the process.
PyObject* recover_function = nullptr;

py::object recover(const py::object& self, const py::object& timeout, const py::object& store,
                   const py::object& exclude, const py::object& config) {
  if (!recover_function) throw std::runtime_error("recover: pynccl.recovery is not imported");
  if (Group::active()) throw py::value_error("recover: it cannot be called inside group()");
  return py::handle(recover_function)(self, timeout, store, exclude, config);
}

}  // namespace

void bind_recovery(py::module_& m) {
  using Release = py::call_guard<GilReleased>;
  m.def(
      "set_recover",
      [](const py::object& function) { recover_function = py::object(function).release().ptr(); },
      py::arg("function"),
      R"(Set the function behind Communicator.recover; pynccl.recovery calls it on import.

Args:
    function: a function (communicator, timeout, store, exclude, config) that returns a
        Communicator.)");
  m.def(
      "can_agree",
      [](const Communicator& c) { return c.library().symbol("hostCommAgree") != nullptr; },
      py::arg("communicator"),
      R"(Whether the library of a communicator has an agreement of its own; for pynccl.recovery.

Args:
    communicator: the communicator.)");
  m.def("begin_recovery", &Communicator::begin_recovery, py::arg("communicator"), Release(),
        R"(Revoke a communicator where NCCL can and it is not; for pynccl.recovery.

Args:
    communicator: the communicator.)");
  m.def("agree", &Communicator::agree, py::arg("communicator"), py::arg("seconds"), py::arg("lost"),
        Release(),
        R"(The agreement of a library on which ranks are left; for pynccl.recovery.

Args:
    communicator: the communicator, after begin_recovery().
    seconds: how long to wait for ranks.
    lost: the ranks not to wait for.

Returns:
    The ranks that are not left; None where the library has no such agreement.)");
  auto type = py::reinterpret_borrow<CommunicatorClass>(m.attr("Communicator"));
  type.def("recover", &recover, py::arg("timeout") = 30.0, py::kw_only(),
           py::arg("store") = py::none(), py::arg("exclude") = py::tuple(),
           py::arg("config") = py::none(),
           R"(Make a communicator of the ranks that are left, in place of this one.

    comm = comm.recover(timeout=10)

All ranks that are left call it: after a rank died or was stopped, or after this communicator
expired or failed. It revokes the communicator, so that ranks that wait for this one raise; the
ranks agree on who is left; and these make a new communicator, by shrink(abort=True), or split()
where nobody is lost. They keep their order and, without config, the configuration and time limits.
All get a communicator of the same ranks, or all raise. This communicator is then aborted, with its
windows, registrations and operators; what its operations have written is undefined.

On CPUs the ranks find out by themselves who is dead, and wait only for ranks that live. NCCL does
not know that: there a store is needed, or exclude.

Args:
    timeout: the time in seconds that a rank has to take part; the new communicator has to be made
        in the same time again. A rank that does not come in time is left out: its own call raises
        NcclRemoteError.
    store: a store of torch.distributed, on every rank, for this communicator alone (PrefixStore).
        The ranks agree through it. Each waits for timeout where a rank is missing.
    exclude: ranks that are known to be lost; nobody waits for them. Without store, on GPUs, all
        ranks must pass the same.
    config: a Config; None inherits this communicator's.

Returns:
    The new Communicator.

Raises:
    TypeError, ValueError: a wrong argument, or this communicator is closed; on GPUs, neither store
        nor exclude is given.
    MissingFunctionError: the library is older than NCCL 2.27.
    NcclRemoteError: this rank was left out.
    NcclTimeoutError: a rank took part in the agreement, but not in making the communicator. All
        raise; the next call leaves it out.
    NcclError: NCCL failed.)");
}

}  // namespace pynccl::python
