#include "python/mirror/process_group.h"

#include <dlpack/dlpack.h>

#include "python/call/fastcall.h"
#include "python/mirror/bind.h"
#include "python/mirror/names.h"

namespace pynccl::python::mirror {
namespace {

bool is_given(PyObject* argument) { return argument && argument != Py_None; }

ProcessGroup::Link link(const py::object& channel) {
  return {channel, &py::cast<Channel&>(channel)};
}

}  // namespace

ProcessGroup* ProcessGroup::given(PyObject* group) {
  if (!is_given(group)) return default_;
  return Py_TYPE(group) == names.group ? &unwrap<ProcessGroup>(group) : nullptr;
}

void ProcessGroup::set_default(const py::object& group) {
  default_ = py::isinstance<ProcessGroup>(group) ? &py::cast<ProcessGroup&>(group) : nullptr;
  PyObject* before = std::exchange(default_object_, default_ ? Py_NewRef(group.ptr()) : nullptr);
  Py_XDECREF(before);
}

PyObject* ProcessGroup::rank_of(PyObject* global_rank, PyObject* group_rank) const {
  if (is_given(group_rank)) return is_given(global_rank) ? nullptr : group_rank;
  if (!is_given(global_rank)) return nullptr;
  if (is_default()) return global_rank;
  PyObject* rank = PyDict_GetItemWithError(rank_of_.ptr(), global_rank);
  if (!rank) PyErr_Clear();
  return rank;
}

const ProcessGroup::Kind* ProcessGroup::kind(int device_type) const {
  switch (device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      return &kinds_[0];
    case kDLCUDA:
      return &kinds_[1];
    default:
      return nullptr;
  }
}

const ProcessGroup::Link* ProcessGroup::channel(int device_type) const {
  const Kind* kind = this->kind(device_type);
  return kind && kind->channel ? &kind->channel : nullptr;
}

const ProcessGroup::Link* ProcessGroup::pair(int device_type, long peer, bool sends) const {
  const Kind* kind = this->kind(device_type);
  if (!kind || peer < 0 || static_cast<std::size_t>(peer) >= kind->pairs.size()) return nullptr;
  const Link& link = kind->pairs[static_cast<std::size_t>(peer)][sends];
  return link ? &link : nullptr;
}

void ProcessGroup::connect(const std::string& kind, const py::object& channel) {
  this->kind(kind).channel = link(channel);
}

void ProcessGroup::connect_pair(const std::string& kind, int peer, const py::object& to,
                                const py::object& from) {
  auto& pairs = this->kind(kind).pairs;
  pairs.resize(static_cast<std::size_t>(size()));
  pairs.at(static_cast<std::size_t>(peer)) = {link(from), link(to)};
}

// Taken out first: letting go of a channel may run code that comes back here.
void ProcessGroup::disconnect() { const auto gone = std::exchange(kinds_, {}); }

void bind_process_group(py::module_& m) {
  py::class_<ProcessGroup>(m, "ProcessGroup", R"(Where the operations of a process group go.

Args:
    rank: this process's rank in the group.
    rank_of: the group's ranks by the global ones.)")
      .def(py::init<int, py::dict>(), py::arg("rank"), py::arg("rank_of"))
      .def_readwrite("_batch", &ProcessGroup::batch,
                     "What collects operations at the moment, or None.")
      .def("_connect", &ProcessGroup::connect, py::arg("kind"), py::arg("channel"),
           "From now on this channel moves the tensors of a kind of device.")
      .def("_connect_pair", &ProcessGroup::connect_pair, py::arg("kind"), py::arg("peer"),
           py::arg("to"), py::arg("from_"),
           "From now on these channels carry what is sent to a rank, and received from it.")
      .def("_disconnect", &ProcessGroup::disconnect, "Forgets the channels.");
  m.def("set_default_group", &ProcessGroup::set_default, py::arg("group"),
        "Have the fast functions take this group where none is given; None is no group.");
}

}  // namespace pynccl::python::mirror
