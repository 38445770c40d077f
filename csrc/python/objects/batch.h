// Operations that go to NCCL together, in order, and the Python objects that they need: what a
// group collects and a plan keeps.
#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "core/communicator.h"

namespace pynccl::python {

namespace py = pybind11;

class Batch {
 public:
  // A point in the order, to come back to.
  struct Mark {
    std::size_t calls = 0, libraries = 0, held = 0;
  };

  bool empty() const { return calls_.empty(); }
  std::size_t size() const { return calls_.size(); }

  void reserve(std::size_t calls) { calls_.reserve(calls); }
  // Needs the GIL, like all that follows but issue(); held are the objects that the operation
  // needs, the one that owns the communicator among them, or nullptr.
  void add(Communicator& communicator, const Operation& operation,
           std::initializer_list<PyObject*> held);
  void hold(PyObject* object);  // something more that an operation needs
  void append(const Batch& other);

  Mark mark() const { return {calls_.size(), libraries_.size(), held_.size()}; }
  void cut(const Mark& mark);  // forgets what came after

  // The same operations, all on one stream: a pynccl, torch or CuPy stream, or an integer.
  Batch on_stream(PyObject* stream) const;

  // Keeps the objects in the graphs that capture() captures the operations into. Needs the GIL.
  void hold_in_captures() const;

  // Issues everything, as one NCCL group per library in the order in which the libraries first
  // appear. A communicator or window that is not open is found before anything is sent. The GIL
  // need not be held, and the calls can block.
  void issue() const;

  // The seconds that issue() would take, as NCCL estimates it for each library's group; none where
  // one of them has no idea. Nothing is run.
  std::optional<double> simulate() const;

 private:
  struct Call {
    Communicator* communicator;
    Operation operation;
  };

  void check_open() const;

  std::vector<Call> calls_;
  std::vector<Library*> libraries_;
  std::vector<py::object> held_;
};

}  // namespace pynccl::python
