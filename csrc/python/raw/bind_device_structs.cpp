// The structs of nccl_device/*.h that host code passes to NCCL, under their own names, for
// pynccl.raw. Pointers in structs are integers in Python. address() returns a struct's address.
#include <pybind11/native_enum.h>

#include "python/call/bind.h"
#include "python/raw/structs.h"

namespace pynccl::python {
namespace {

// Binds a struct with plain fields. A new object has the values of its default initializer.
template <class T>
class StructClass {
 public:
  StructClass(py::module_& m, const char* name, const char* doc) : type_(m, name, doc) {
    type_.def(py::init<>());
    type_.def(
        "address", [](const T& s) { return reinterpret_cast<std::uintptr_t>(&s); },
        "The address of the struct, valid for the lifetime of the object.");
  }

  template <class Field>
  StructClass& field(const char* name, Field T::* member) {
    if constexpr (std::is_pointer_v<Field>) {
      type_.def_property(
          name, [=](const T& s) { return reinterpret_cast<std::uintptr_t>(s.*member); },
          [=](T& s, std::uintptr_t value) { s.*member = reinterpret_cast<Field>(value); });
    } else if constexpr (std::is_array_v<Field>) {
      type_.def_property_readonly(name, [=](const T& s) {
        py::list items;
        for (const auto& item : s.*member) items.append(item);
        return py::tuple(items);
      });
    } else if constexpr (std::is_enum_v<Field>) {
      type_.def_property(
          name, [=](const T& s) { return static_cast<unsigned>(s.*member); },
          [=](T& s, unsigned value) { s.*member = static_cast<Field>(value); });
    } else {
      type_.def_readwrite(name, member);
    }
    return *this;
  }

  py::class_<T>& type() { return type_; }

 private:
  py::class_<T> type_;
};

}  // namespace

void bind_device_structs(py::module_& m) {
  StructClass<ncclTeam>(m, "ncclTeam_t", "Ranks of a communicator with a constant stride.")
      .field("nRanks", &ncclTeam::nRanks)
      .field("rank", &ncclTeam::rank)
      .field("stride", &ncclTeam::stride)
      .type()
      .def(
          py::init([](int nRanks, int rank, int stride) { return ncclTeam{nRanks, rank, stride}; }),
          py::arg("nRanks"), py::arg("rank"), py::arg("stride"));
  StructClass<ncclMultimemHandle>(m, "ncclMultimemHandle_t", "The multicast memory of a team.")
      .field("mcBasePtr", &ncclMultimemHandle::mcBasePtr);
  StructClass<ncclLsaBarrierHandle>(m, "ncclLsaBarrierHandle_t", "Barriers of an LSA team.")
      .field("bufHandle", &ncclLsaBarrierHandle::bufHandle)
      .field("nBarriers", &ncclLsaBarrierHandle::nBarriers);
  StructClass<ncclGinBarrierHandle>(m, "ncclGinBarrierHandle_t", "Barriers over the network.")
      .field("signal0", &ncclGinBarrierHandle::signal0);
  StructClass<ncclLLA2AHandle>(m, "ncclLLA2AHandle_t", "The memory of a low-latency all-to-all.")
      .field("bufHandle", &ncclLLA2AHandle::bufHandle)
      .field("nSlots", &ncclLLA2AHandle::nSlots);

  using Resources = ncclDevResourceRequirements_t;
  StructClass<Resources>(m, "ncclDevResourceRequirements_t",
                         "The memory and signals to allocate for a device communicator.")
      .field("next", &Resources::next)
      .field("bufferSize", &Resources::bufferSize)
      .field("bufferAlign", &Resources::bufferAlign)
      .field("outBufferHandle", &Resources::outBufferHandle)
      .field("ginSignalCount", &Resources::ginSignalCount)
      .field("ginCounterCount", &Resources::ginCounterCount)
      .field("outGinSignalStart", &Resources::outGinSignalStart)
      .field("outGinCounterStart", &Resources::outGinCounterStart);
  StructClass<ncclTeamRequirements_t>(m, "ncclTeamRequirements_t",
                                      "A team for which a device communicator is prepared.")
      .field("next", &ncclTeamRequirements_t::next)
      .field("team", &ncclTeamRequirements_t::team)
      .field("multimem", &ncclTeamRequirements_t::multimem)
      .field("outMultimemHandle", &ncclTeamRequirements_t::outMultimemHandle);

  StructClass<ncclDevCommRequirements_t> requirements(
      m, "ncclDevCommRequirements_t",
      "The requirements of a device communicator, initialized by "
      "NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER.");
  requirements.field("size", &ncclDevCommRequirements_t::size)
      .field("magic", &ncclDevCommRequirements_t::magic)
      .field("version", &ncclDevCommRequirements_t::version);
#define FIELD(since, type, name) requirements.field(#name, &ncclDevCommRequirements_t::name);
#include "abi/device_requirements_fields.inc"
#undef FIELD

  StructClass<ncclCommProperties_t> properties(
      m, "ncclCommProperties_t",
      "The properties of a communicator, initialized by NCCL_COMM_PROPERTIES_INITIALIZER. A "
      "library "
      "older than version returns an error: set size and version to those of the library.");
  properties.field("size", &ncclCommProperties_t::size)
      .field("magic", &ncclCommProperties_t::magic)
      .field("version", &ncclCommProperties_t::version);
#define FIELD(since, type, name) properties.field(#name, &ncclCommProperties_t::name);
#include "abi/comm_properties_fields.inc"
#undef FIELD

  StructClass<ncclDevComm>(
      m, "ncclDevComm_t",
      "A device communicator in the layout of NCCL 2.31 and 2.32. Pass it to kernels by value: "
      "bytes(device_comm).")
      .field("magic", &ncclDevComm::magic)
      .field("version", &ncclDevComm::version)
      .field("rank", &ncclDevComm::rank)
      .field("nRanks", &ncclDevComm::nRanks)
      .field("lsaRank", &ncclDevComm::lsaRank)
      .field("lsaSize", &ncclDevComm::lsaSize)
      .field("resourceWindow", &ncclDevComm::resourceWindow)
      .field("lsaMultimem", &ncclDevComm::lsaMultimem)
      .field("lsaBarrier", &ncclDevComm::lsaBarrier)
      .field("railGinBarrier", &ncclDevComm::railGinBarrier)
      .field("ginSignalCount", &ncclDevComm::ginSignalCount)
      .field("ginCounterCount", &ncclDevComm::ginCounterCount)
      .field("ginContextCount", &ncclDevComm::ginContextCount)
      .type()
      .def("__bytes__", [](const ncclDevComm& comm) {
        return py::bytes(reinterpret_cast<const char*>(&comm), sizeof comm);
      });
}

}  // namespace pynccl::python
