// What the fast functions need to know of a process group; the Python class ProcessGroup inherits
// it.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <vector>

#include "python/mirror/channel.h"

namespace pynccl::python::mirror {

class ProcessGroup {
 public:
  // A channel: Python's object, and its part in C++.
  struct Link {
    py::object object;
    Channel* channel = nullptr;

    explicit operator bool() const { return channel && channel->usable(); }
  };

  // rank_of: this group's ranks by the global ones.
  ProcessGroup(int rank, py::dict rank_of) : rank_(rank), rank_of_(std::move(rank_of)) {}

  // The group of an argument: the default one for nullptr and None; nullptr for what is none.
  static ProcessGroup* given(PyObject* group);
  static void set_default(const py::object& group);
  static PyObject* default_object() { return default_object_; }
  bool is_default() const { return this == default_; }

  // What collects operations at the moment, or None.
  py::object batch = py::none();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(PyDict_GET_SIZE(rank_of_.ptr())); }
  // The rank in this group that a global one (or else the group's own) names; borrowed, nullptr
  // where it is not clear at once.
  PyObject* rank_of(PyObject* global_rank, PyObject* group_rank) const;

  // Whether there is a channel at all, as long as the group was not ended.
  bool connected() const { return kinds_[0].channel.channel || kinds_[1].channel.channel; }
  // The links of a kind of device, by its DLDeviceType; nullptr where there is none.
  const Link* channel(int device_type) const;
  // The one on which this rank sends to a peer outside a batch, or receives from it.
  const Link* pair(int device_type, long peer, bool sends) const;

  void connect(const std::string& kind, const py::object& channel);
  void connect_pair(const std::string& kind, int peer, const py::object& to,
                    const py::object& from);
  void disconnect();

 private:
  struct Kind {
    Link channel;
    std::vector<std::array<Link, 2>> pairs;  // by peer; receiving, sending
  };

  Kind& kind(const std::string& name) { return kinds_[name == "cuda"]; }
  const Kind* kind(int device_type) const;

  inline static PyObject* default_object_ = nullptr;
  inline static ProcessGroup* default_ = nullptr;

  int rank_;
  py::dict rank_of_;
  std::array<Kind, 2> kinds_;  // cpu, cuda
};

}  // namespace pynccl::python::mirror
