// The C++ part of pynccl.ProcessGroup, which owns the CommStreams.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <string>
#include <vector>

#include "python/mirror/comm_stream.h"

namespace pynccl::python::mirror {

class ProcessGroup {
 public:
  // rank_of maps global ranks to ranks in this group.
  ProcessGroup(int rank, py::dict rank_of) : rank_(rank), rank_of_(std::move(rank_of)) {}

  // The group of an argument: the default group for nullptr and None, nullptr for an object that is
  // not a ProcessGroup.
  static ProcessGroup* given(PyObject* group);
  static void set_default(const py::object& group);
  static PyObject* default_object() { return default_object_; }  // borrowed; nullptr for none
  bool is_default() const { return this == default_; }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(PyDict_GET_SIZE(rank_of_.ptr())); }
  // The rank in this group for a global rank or a group rank, of which one is given; borrowed.
  // Returns nullptr if only the Python function can resolve it.
  PyObject* rank_of(PyObject* global_rank, PyObject* group_rank) const;

  // Whether the whole group has a CommStream.
  bool connected() const { return devices_[0].comm_stream || devices_[1].comm_stream; }
  // The CommStream for a DLDeviceType; nullptr if there is none.
  const CommStreamRef* comm_stream(int device_type) const;
  // The CommStream on which this rank sends to or receives from a peer outside a batch, and the
  // peer's rank in its communicator. comm_stream is nullptr if there is none yet.
  struct Transfer {
    const CommStreamRef* comm_stream = nullptr;
    long peer = -1;
  };
  Transfer transfer(int device_type, long peer, bool sends) const;

  // The same for Python, by torch's device type ("cpu", "cuda"). get_comm_stream() returns None if
  // there is none. It and check_valid() throw ValueError once the group is invalid.
  py::object get_comm_stream(const std::string& device_type) const;
  void set_comm_stream(const std::string& device_type, const py::object& comm_stream);
  py::dict comm_streams() const;
  void set_pair(const std::string& device_type, std::size_t peer, const py::object& sending,
                const py::object& receiving);
  void check_valid() const;
  // Transfers outside a batch use the CommStream of the whole group, not those of pairs.
  void use_own_for_transfers(const std::string& device_type);

  // Invalidates the group. keep: whether to keep the CommStreams alive, unused.
  void invalidate(std::string reason, bool keep);

 private:
  struct Device {
    CommStreamRef comm_stream;
    std::vector<std::array<CommStreamRef, 2>> pairs;  // by peer: receiving, sending
    bool own_for_transfers = false;
  };
  using Devices = std::array<Device, 2>;  // cpu, cuda

  const Device* device(int device_type) const;
  const Device* device(const std::string& device_type) const;  // nullptr for other types
  Device& known_device(const std::string& device_type);        // throws for other types

  inline static PyObject* default_object_ = nullptr;
  inline static ProcessGroup* default_ = nullptr;

  int rank_;
  py::dict rank_of_;
  Devices devices_, kept_;
  std::string invalid_reason_;  // empty: valid
};

// The group of an argument if its operations are issued immediately, otherwise nullptr.
inline ProcessGroup* direct_group(PyObject* argument) {
  ProcessGroup* group = ProcessGroup::given(argument);
  if (!group || Group::active()) [[unlikely]]
    return nullptr;
  return group;
}

}  // namespace pynccl::python::mirror
