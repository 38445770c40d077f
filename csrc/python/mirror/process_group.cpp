#include "python/mirror/process_group.h"

#include <dlpack/dlpack.h>

#include "python/call/bind.h"
#include "python/call/fastcall.h"
#include "python/mirror/fast_function.h"

namespace pynccl::python::mirror {
namespace {

constexpr const char* kDeviceTypes[] = {"cpu", "cuda"};

}  // namespace

ProcessGroup* ProcessGroup::given(PyObject* group) {
  if (!python::given(group)) return default_;
  return Py_TYPE(group) == classes.group ? &unwrap<ProcessGroup>(group) : nullptr;
}

void ProcessGroup::set_default(const py::object& group) {
  default_ = py::isinstance<ProcessGroup>(group) ? &py::cast<ProcessGroup&>(group) : nullptr;
  PyObject* before = std::exchange(default_object_, default_ ? Py_NewRef(group.ptr()) : nullptr);
  Py_XDECREF(before);
}

PyObject* ProcessGroup::rank_of(PyObject* global_rank, PyObject* group_rank) const {
  if (python::given(group_rank)) return python::given(global_rank) ? nullptr : group_rank;
  if (!python::given(global_rank)) return nullptr;
  if (is_default()) return global_rank;
  PyObject* rank = PyDict_GetItemWithError(rank_of_.ptr(), global_rank);
  if (!rank) PyErr_Clear();
  return rank;
}

const ProcessGroup::Device* ProcessGroup::device(int device_type) const {
  switch (device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      return &devices_[0];
    case kDLCUDA:
      return &devices_[1];
    default:
      return nullptr;
  }
}

const ProcessGroup::Device* ProcessGroup::device(const std::string& device_type) const {
  for (std::size_t i = 0; i < devices_.size(); ++i)
    if (device_type == kDeviceTypes[i]) return &devices_[i];
  return nullptr;
}

ProcessGroup::Device& ProcessGroup::known_device(const std::string& device_type) {
  if (!device(device_type))
    throw py::value_error("device_type: '" + device_type + "' must be 'cpu' or 'cuda'");
  return devices_[device_type == kDeviceTypes[1]];
}

const CommStreamRef* ProcessGroup::comm_stream(int device_type) const {
  const Device* device = this->device(device_type);
  return device && device->comm_stream ? &device->comm_stream : nullptr;
}

ProcessGroup::Transfer ProcessGroup::transfer(int device_type, long peer, bool sends) const {
  const Device* device = this->device(device_type);
  if (!device) return {};
  if (device->own_for_transfers) {
    // The Python function refuses transfers of a rank to itself.
    if (!device->comm_stream || peer == rank_) return {};
    return {&device->comm_stream, peer};
  }
  if (peer < 0 || static_cast<std::size_t>(peer) >= device->pairs.size()) return {};
  const CommStreamRef& comm_stream = device->pairs[static_cast<std::size_t>(peer)][sends];
  if (!comm_stream) return {};
  return {&comm_stream, 1 - comm_stream.comm_stream->communicator().rank()};
}

void ProcessGroup::check_valid() const {
  if (!invalid_reason_.empty())
    throw py::value_error("Invalid process group specified: " + invalid_reason_);
}

py::object ProcessGroup::get_comm_stream(const std::string& device_type) const {
  check_valid();
  const Device* device = this->device(device_type);
  return device && device->comm_stream.comm_stream ? device->comm_stream.object : py::none();
}

void ProcessGroup::set_comm_stream(const std::string& device_type, const py::object& comm_stream) {
  known_device(device_type).comm_stream = CommStreamRef(comm_stream);
}

py::dict ProcessGroup::comm_streams() const {
  py::dict result;
  for (std::size_t i = 0; i < devices_.size(); ++i)
    if (devices_[i].comm_stream.comm_stream)
      result[kDeviceTypes[i]] = devices_[i].comm_stream.object;
  return result;
}

void ProcessGroup::set_pair(const std::string& device_type, std::size_t peer,
                            const py::object& sending, const py::object& receiving) {
  check_valid();
  auto& pairs = known_device(device_type).pairs;
  pairs.resize(static_cast<std::size_t>(size()));
  pairs.at(peer) = {CommStreamRef(receiving), CommStreamRef(sending)};
}

void ProcessGroup::use_own_for_transfers(const std::string& device_type) {
  known_device(device_type).own_for_transfers = true;
}

void ProcessGroup::invalidate(std::string reason, bool keep) {
  invalid_reason_ = std::move(reason);
  auto removed = std::exchange(devices_, {});
  if (keep) kept_ = std::move(removed);
}

void bind_process_group(py::module_& m) {
  py::class_<ProcessGroup>(m, "ProcessGroup", R"(The CommStreams of a process group.

Args:
    rank: this process's rank in the group.
    rank_of: a dict from global ranks to ranks in the group.)")
      .def(py::init<int, py::dict>(), py::arg("rank"), py::arg("rank_of"))
      .def("rank", &ProcessGroup::rank, "This process's rank in the group.")
      .def("size", &ProcessGroup::size, "The number of ranks in the group.")
      .def("_comm_stream", &ProcessGroup::get_comm_stream, py::arg("device_type"),
           "The CommStream for a type of device, or None. Raises ValueError if the group is "
           "invalid.")
      .def("_set_comm_stream", &ProcessGroup::set_comm_stream, py::arg("device_type"),
           py::arg("comm_stream"), "Set the CommStream for a type of device.")
      .def("comm_streams", &ProcessGroup::comm_streams, "The existing CommStreams, by device type.")
      .def("_set_pair", &ProcessGroup::set_pair, py::arg("device_type"), py::arg("peer"),
           py::arg("sending"), py::arg("receiving"),
           "Set the CommStreams on which this rank sends to another and receives from it.")
      .def("_check_valid", &ProcessGroup::check_valid, "Raise ValueError if the group is invalid.")
      .def("_use_own_for_transfers", &ProcessGroup::use_own_for_transfers, py::arg("device_type"),
           "Use the CommStream of the group for transfers outside a batch, not those of Pairs.")
      .def("_invalidate", &ProcessGroup::invalidate, py::arg("reason"), py::arg("keep") = false,
           "Invalidate the group: its operations raise ValueError with this reason. keep: whether "
           "to keep the CommStreams alive, unused.");
  m.def("set_default_group", &ProcessGroup::set_default, py::arg("group"),
        "Set the default group, used by operations without a group argument; None removes it.");
  m.def(
      "default_group",
      [] {
        PyObject* group = ProcessGroup::default_object();
        return group ? py::reinterpret_borrow<py::object>(group) : py::none();
      },
      "The default group, or None.");
}

}  // namespace pynccl::python::mirror
