// The names of NCCL's GIN types and connections in Python.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "abi/nccl_device_types.h"

namespace pynccl::python {

namespace py = pybind11;

using abi::ncclGinConnectionType_t;
using abi::ncclGinType_t;

inline constexpr std::pair<const char*, ncclGinType_t> kGinTypes[] = {
    {"none", abi::NCCL_GIN_TYPE_NONE},       {"proxy", abi::NCCL_GIN_TYPE_PROXY},
    {"gdaki", abi::NCCL_GIN_TYPE_GDAKI},     {"gpi", abi::NCCL_GIN_TYPE_GPI},
    {"efa_gda", abi::NCCL_GIN_TYPE_EFA_GDA},
};
inline constexpr std::pair<const char*, ncclGinConnectionType_t> kGinConnections[] = {
    {"none", abi::NCCL_GIN_CONNECTION_NONE},
    {"full", abi::NCCL_GIN_CONNECTION_FULL},
    {"rail", abi::NCCL_GIN_CONNECTION_RAIL},
    {"custom", abi::NCCL_GIN_CONNECTION_CUSTOM_STRIDE},
};

// A value that has no name yet is the text of its number.
template <class Table, class Value>
py::object name_in(const Table& table, Value value) {
  for (const auto& [name, number] : table)
    if (number == value) return py::str(name);
  return py::str(std::to_string(static_cast<unsigned>(value)));
}
inline py::object gin_type_name(ncclGinType_t value) { return name_in(kGinTypes, value); }
inline py::object gin_connection_name(ncclGinConnectionType_t value) {
  return name_in(kGinConnections, value);
}

}  // namespace pynccl::python
