// What a thread collects between the entry and the exit of group(): operations, checked and with
// their buffers held, and communicators to be made. Nothing reaches NCCL before the outermost group
// ends, so that an exception on the way leaves nothing half done.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <vector>

#include "core/communicator.h"

namespace pynccl::python {

namespace py = pybind11;

class Group {
 public:
  static Group& of_this_thread();

  bool active() const { return depth_ > 0; }

  void record(Communicator& communicator, const Operation& operation,
              std::initializer_list<PyObject*> held);
  // The communicator is made at the end of the group, by begin.
  void record(std::shared_ptr<Communicator> communicator, std::function<void(Communicator&)> begin);

  void enter();
  // Ends the innermost group: keeps what it collected for the outer one, or issues it. With failed,
  // drops it.
  void exit(bool failed);

 private:
  struct Call {
    Communicator* communicator;
    Operation operation;
  };
  struct Creation {
    std::shared_ptr<Communicator> communicator;
    std::function<void(Communicator&)> begin;
  };
  struct Mark {
    std::size_t calls, creations, held;
  };

  void issue();

  int depth_ = 0;
  std::vector<Mark> marks_;
  std::vector<Call> calls_;
  std::vector<Creation> creations_;
  std::vector<py::object> held_;
};

// Makes one communicator now, or at the end of the current group. The GIL is released while NCCL
// works.
void create(std::shared_ptr<Communicator> communicator, std::function<void(Communicator&)> begin);

}  // namespace pynccl::python
