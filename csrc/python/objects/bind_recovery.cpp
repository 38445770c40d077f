// The steps of Communicator.recover(), which is in pynccl/_internal/recovery.py.
#include "python/call/gil.h"
#include "python/objects/bind.h"
#include "python/objects/communicator.h"
#include "python/objects/group.h"

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
    method: what cannot be called there.)");
  m.def(
      "can_agree",
      [](const Communicator& c) { return c.library().symbol("hostCommAgree") != nullptr; },
      py::arg("communicator"),
      R"(Whether the library of a communicator has an agreement of its own; for pynccl._internal.recovery.

Args:
    communicator: the communicator.)");
  m.def("begin_recovery", &Communicator::begin_recovery, py::arg("communicator"), Release(),
        R"(Revoke a communicator if NCCL can and it is not revoked; for pynccl._internal.recovery.

Args:
    communicator: the communicator.)");
  m.def("agree", &Communicator::agree, py::arg("communicator"), py::arg("seconds"), py::arg("lost"),
        Release(),
        R"(The agreement of a library on which ranks are left; for pynccl._internal.recovery.

Args:
    communicator: the communicator, after begin_recovery().
    seconds: how long to wait for ranks.
    lost: the ranks not to wait for.

Returns:
    The lost ranks; None if the library has no such agreement.)");
}

}  // namespace pynccl::python
