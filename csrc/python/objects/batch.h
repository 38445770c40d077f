// Batch: a sequence of operations that are issued together, with references to the Python objects
// that they need. A group collects one, a plan keeps one.
#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "comm/communicator.h"

namespace pynccl::python {

namespace py = pybind11;

class Batch {
 public:
  // A position in the sequence, for cut().
  struct Mark {
    std::size_t entries = 0, libraries = 0, held = 0, owned = 0;
  };

  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }

  void reserve(std::size_t operations) { entries_.reserve(operations); }
  // held: the objects that the operation needs, the owner of the communicator included. owner: what
  // owns memory that the caller has no reference to. nullptr is skipped. Needs the GIL, as all
  // functions below except issue() and simulate() do.
  void add(Communicator& communicator, const Operation& operation,
           std::initializer_list<PyObject*> held, PyObject* owner = nullptr);
  void hold(PyObject* object);  // another object that an operation needs
  void append(const Batch& other);

  // Throws OverlapError where operations would use memory that another one writes.
  void check_overlap() const;

  Mark mark() const { return {entries_.size(), libraries_.size(), held_.size(), owned_.size()}; }
  void cut(const Mark& mark);  // removes what was added after the mark

  // A copy with all operations on one stream: a pynccl, torch or CuPy stream, or an integer.
  Batch on_stream(PyObject* stream) const;

  // Makes the graphs that capture() captures the operations into keep the objects. Needs the GIL.
  void hold_in_captures() const;

  // After issue(): keeps the owners of memory until the operations are done.
  void hold_until_done() const;

  // Issues all operations as one NCCL group per library, in the order in which the libraries first
  // appear. A closed communicator or window is an error before anything is issued. Does not need
  // the GIL; the calls can block.
  void issue() const;

  // NCCL's estimate of the duration of issue() in seconds, without running it; none where a library
  // has no estimate.
  std::optional<double> simulate() const;

 private:
  struct Entry {
    Communicator* communicator;
    Operation operation;
  };

  class Uses;

  void check_open() const;
  void check_alike() const;
  void compare() const;
  void check_simulated() const;
  std::optional<double> simulate_several() const;
  template <class Issue, class End>
  void issue_groups(Issue&& issue_one, End&& end) const;

  std::vector<Entry> entries_;
  std::vector<Library*> libraries_;
  std::vector<py::object> held_;

  struct Owned {
    std::size_t entry;
    py::object owner;
  };
  std::vector<Owned> owned_;
};

}  // namespace pynccl::python
