// The Python class Team: a type of its own, since pynccl.raw binds ncclTeam itself.
#pragma once

#include <pybind11/pybind11.h>

#include "comm/team.h"

namespace pynccl::python {

namespace py = pybind11;

struct Team {
  ncclTeam value;
  bool operator==(const Team& other) const {
    return value.nRanks == other.value.nRanks && value.rank == other.value.rank &&
           value.stride == other.value.stride;
  }
};

// Adds a method to a class that is already bound.
template <class Class, class Function, class... Extra>
void add_method(const char* name, Function&& function, const Extra&... extra) {
  const py::type type = py::type::of<Class>();
  py::setattr(type, name,
              py::cpp_function(std::forward<Function>(function), py::name(name),
                               py::is_method(type), extra...));
}

}  // namespace pynccl::python
