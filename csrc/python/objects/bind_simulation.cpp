// simulate(): a group whose operations are not run, only estimated.
#include "python/call/gil.h"
#include "python/objects/bind.h"
#include "python/objects/group.h"

namespace pynccl::python {
namespace {

class Simulation : Group::Recorder {
 public:
  Simulation() : Recorder{"simulate"} {}

  void enter() { Group::of_this_thread().enter(*this); }

  void exit(bool failed) {
    const Batch batch = Group::of_this_thread().exit(*this, failed);
    estimated_time_.reset();
    if (failed) return;
    const GilReleased released;
    estimated_time_ = batch.simulate();
  }

  std::optional<double> estimated_time() const { return estimated_time_; }

 private:
  std::optional<double> estimated_time_;
};

}  // namespace

void bind_simulation(py::module_& m) {
  py::class_<Simulation>(m, "Simulation", "What simulate() gives.")
      .def("__enter__",
           [](const py::object& self) {
             py::cast<Simulation&>(self).enter();
             return self;
           })
      .def(
          "__exit__",
          [](Simulation& simulation, const py::object& type, const py::object&, const py::object&) {
            simulation.exit(!type.is_none());
            return false;
          })
      .def_property_readonly("estimated_time", &Simulation::estimated_time,
                             "Seconds that the group would take; None before its end, and where "
                             "NCCL has no estimate.");
  m.def(
      "simulate", [] { return Simulation(); },
      R"(Ask how long a group would take, without running it (ncclGroupSimulateEnd).

    with nccl.simulate() as s:
        comm.all_reduce(x)
    print(s.estimated_time)

The with block collects operations as group() does and checks them; at its end NCCL estimates the
time, nothing is sent, no buffer is touched, and other ranks need not do the same. estimated_time is
in seconds (nccl.h has microseconds). NCCL estimates one collective of the group from its model of
the machine and has none for sends and receives alone: then it is None. hostnccl adds up all that is
in the group, from constants that were measured on one machine. An empty block takes 0.0. It begins
outside of groups and plans; communicators are not made inside. NCCL 2.22 or newer.

Raises:
    MissingFunctionError: the library is too old.
    NcclError: at the end of the block, if NCCL refuses an operation.)");
}

}  // namespace pynccl::python
