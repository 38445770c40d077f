// simulate(): a group whose duration is estimated without running its operations.
#include "python/call/bind.h"
#include "python/call/gil.h"
#include "python/comm/group.h"

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
  py::class_<Simulation>(m, "Simulation", "A simulated group. Created by simulate().")
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
                             "The estimated duration of the group in seconds. None before the end "
                             "of the block, and if NCCL has no estimate.");
  m.def(
      "simulate", [] { return Simulation(); },
      R"(Estimate the duration of a group without running it (ncclGroupSimulateEnd, NCCL 2.22).

    with nccl.simulate() as s:
        comm.all_reduce(x)
    print(s.estimated_time)

The with block collects and checks operations like group(). At its end NCCL estimates the duration,
without accessing the buffers. All ranks of a communicator must call it, since NCCL connects them
for an algorithm that it has not used before. estimated_time is in seconds (microseconds in nccl.h).
NCCL estimates one collective of the group from its model of the machine. hostnccl adds up all
operations, with constants measured on one machine. The estimate for an empty block, and for
communicators of one rank, is 0.0. A simulation cannot begin inside a group or a plan, and
communicators and windows cannot be created inside a simulation.

Returns:
    A Simulation, a context manager.

Raises:
    RuntimeError: at the beginning of the block, inside a group, a plan or a simulation.
    ValueError: at the end of the block, if NCCL would run an operation instead: an operation of a
        non-blocking communicator, a send or recv, an all_to_all, gather or scatter, or a one-sided
        operation.
    MissingFunctionError: at the end of the block, if the library is older than NCCL 2.22.
    NcclError: at the end of the block, if NCCL rejects an operation.)");
}

}  // namespace pynccl::python
