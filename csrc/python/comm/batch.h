// Batch: a sequence of operations that are issued together, with references to the Python objects
// that they need. Groups collect batches, plans store them.
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
  // held: the objects that the operation needs, including the owner of the communicator. owner: an
  // owner of memory that the caller does not hold. Both skip nullptr. Requires the GIL, like all
  // functions below except issue() and simulate().
  void add(Communicator& communicator, const Operation& operation,
           std::initializer_list<PyObject*> held, PyObject* owner = nullptr);
  void hold(PyObject* object);  // another object that an operation needs
  void append(const Batch& other);

  // Throws OverlapError if an operation would use memory that another one writes.
  void check_overlap() const;

  Mark mark() const { return {entries_.size(), libraries_.size(), held_.size(), owned_.size()}; }
  void cut(const Mark& mark);  // removes everything added after the mark

  // A copy with all operations on one stream: a pynccl, torch or CuPy stream, or an integer.
  Batch on_stream(PyObject* stream) const;

  // Calls issue() without the GIL. Keeps the objects or, on GPUs, the owners of memory alive until
  // the operations are done, and the objects as long as a graph that captures the operations.
  void run() const;

  // Issues all operations as one NCCL group per library, in the order in which the libraries first
  // appear. Throws before anything is issued if a communicator or window is closed. The calls can
  // block.
  void issue() const;

  // NCCL's estimate of the duration of issue() in seconds, without running it; nullopt if a library
  // has no estimate.
  std::optional<double> simulate() const;

 private:
  struct Entry {
    Communicator* communicator;
    Operation operation;
  };

  class Uses;

  void keep_alive_in_captures() const;
  void keep_alive_until_done() const;
  py::list all_held() const;
  template <class Visit>
  void each_stream(Visit&& visit) const;
  void check_open() const;
  void check_alike() const;
  void compare() const;
  void check_simulated() const;
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
