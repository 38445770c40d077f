// The C++ part of Communicator.recover(); the rest is in pynccl/_internal/recovery.py.
#include "python/call/bind.h"
#include "python/call/gil.h"
#include "python/comm/communicator.h"
#include "python/comm/group.h"

namespace pynccl::python {

void bind_recovery(py::module_& m) {
  using Release = py::call_guard<GilReleased>;
  m.def(
      "check_outside_group",
      [](const std::string& method) {
        if (Group::active()) throw py::value_error(method + ": it cannot be called inside group()");
      },
      py::arg("method"),
      R"(Raise ValueError inside group().

Args:
    method: the name of the method, for the error text.)");
  m.def(
      "can_agree",
      [](const Communicator& c) { return c.library().symbol("hostCommAgree") != nullptr; },
      py::arg("communicator"),
      R"(Whether the library can agree on the surviving ranks; for pynccl._internal.recovery.

Args:
    communicator: the communicator.)");
  m.def("begin_recovery", &Communicator::begin_recovery, py::arg("communicator"), Release(),
        R"(Revoke a communicator if NCCL supports it; for pynccl._internal.recovery.

A communicator that is revoked already is left alone.

Args:
    communicator: the communicator.)");
  m.def("agree", &Communicator::agree, py::arg("communicator"), py::arg("seconds"), py::arg("lost"),
        Release(),
        R"(Let the library agree on the surviving ranks; for pynccl._internal.recovery.

Args:
    communicator: the communicator, after begin_recovery().
    seconds: the time limit of the wait for ranks.
    lost: the ranks not to wait for.

Returns:
    The lost ranks; None if the library cannot agree: see can_agree().)");
}

}  // namespace pynccl::python
