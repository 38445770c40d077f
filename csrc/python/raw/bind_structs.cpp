// The enums and structs of nccl.h and nccl_device/*.h under their own names, for pynccl.raw, and
// UniqueId.
// Pointers in structs are integers in Python, and strings are str.
#include <pybind11/native_enum.h>

#include "nccl/library.h"
#include "python/call/bind.h"
#include "python/raw/structs.h"

namespace pynccl::python {
namespace {

template <class T>
T& struct_in(T& bound) {
  return bound;
}
template <class T>
T& struct_in(Owned<T>& bound) {
  return bound.value;
}

// Binds a struct. A new object has the values of its default initializer.
template <class T>
class StructClass {
  using Class = Bound<T>;

 public:
  StructClass(py::module_& m, const char* name, const char* doc) : type_(m, name, doc) {
    type_.def(py::init<>());
    type_.def(
        "address", [](Class& s) { return reinterpret_cast<std::uintptr_t>(&struct_in(s)); },
        "The address of the struct, valid for the lifetime of the object.");
    if constexpr (requires {
                    &T::size;
                    &T::magic;
                  })
      field("size", &T::size).field("magic", &T::magic).field("version", &T::version);
  }

  template <class Field>
  StructClass& field(const char* name, Field T::* member) {
    const auto of = [=](Class& s) -> Field& { return struct_in(s).*member; };
    if constexpr (std::is_same_v<Field, const char*>)
      type_.def_property(name, of, [=](Class& s, const py::object& text) { s.set(member, text); });
    else if constexpr (std::is_pointer_v<Field>)
      type_.def_property(
          name, [=](Class& s) { return reinterpret_cast<std::uintptr_t>(of(s)); },
          [=](Class& s, std::uintptr_t value) { of(s) = reinterpret_cast<Field>(value); });
    else if constexpr (std::is_array_v<Field>)
      type_.def_property_readonly(name, [=](Class& s) {
        py::list items;
        for (const auto& item : of(s)) items.append(item);
        return py::tuple(items);
      });
    else if constexpr (std::is_enum_v<Field>)
      type_.def_property(
          name, [=](Class& s) { return static_cast<unsigned>(of(s)); },
          [=](Class& s, unsigned value) { of(s) = static_cast<Field>(value); });
    else
      type_.def_property(name, of, [=](Class& s, const Field& value) { of(s) = value; });
    return *this;
  }

  py::class_<Class>& type() { return type_; }

 private:
  py::class_<Class> type_;
};

py::bytes bytes_of(const ncclUniqueId& id) { return py::bytes(id.internal, kUniqueIdBytes); }

}  // namespace

ncclUniqueId unique_id_from_python(const char* name, PyObject* value) {
  if (py::isinstance<ncclUniqueId>(value)) return py::cast<ncclUniqueId>(py::handle(value));
  Py_buffer view;
  if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) != 0)
    throw_conversion_error(name, "a UniqueId or 128 bytes", value);
  ncclUniqueId id;
  const Py_ssize_t size = view.len;
  if (size == kUniqueIdBytes) std::memcpy(id.internal, view.buf, kUniqueIdBytes);
  PyBuffer_Release(&view);
  if (size != kUniqueIdBytes)
    throw_value_error(name, "has ", size, " bytes, a UniqueId has ", kUniqueIdBytes);
  return id;
}

void bind_structs(py::module_& m) {
#define VALUE(name) .value(#name, name)
  py::native_enum<ncclResult_t>(m, "ncclResult_t", "enum.IntEnum", "The result of every NCCL call.")
      VALUE(ncclSuccess) VALUE(ncclUnhandledCudaError) VALUE(ncclSystemError)
          VALUE(ncclInternalError) VALUE(ncclInvalidArgument) VALUE(ncclInvalidUsage)
              VALUE(ncclRemoteError) VALUE(ncclInProgress) VALUE(ncclTimeout)
                  .finalize();
  py::native_enum<ncclRedOp_t>(m, "ncclRedOp_t", "enum.IntEnum",
                               "The built-in reduction operators.") VALUE(ncclSum) VALUE(ncclProd)
      VALUE(ncclMax) VALUE(ncclMin) VALUE(ncclAvg)
          .finalize();
  py::native_enum<ncclDataType_t>(m, "ncclDataType_t", "enum.IntEnum", "The element types.")
      VALUE(ncclInt8) VALUE(ncclUint8) VALUE(ncclInt32) VALUE(ncclUint32) VALUE(ncclInt64)
          VALUE(ncclUint64) VALUE(ncclFloat16) VALUE(ncclFloat32) VALUE(ncclFloat64)
              VALUE(ncclBfloat16) VALUE(ncclFloat8e4m3) VALUE(ncclFloat8e5m2)
                  .finalize();
  py::native_enum<ncclScalarResidence_t>(m, "ncclScalarResidence_t", "enum.IntEnum",
                                         "Where the scalar of a reduction operator is stored.")
      VALUE(ncclScalarDevice) VALUE(ncclScalarHostImmediate)
          .finalize();
  py::native_enum<ncclCommMemStat_t>(m, "ncclCommMemStat_t", "enum.IntEnum",
                                     "The statistics of ncclCommMemStats.")
      VALUE(ncclStatGpuMemSuspend) VALUE(ncclStatGpuMemSuspended) VALUE(ncclStatGpuMemPersist)
          VALUE(ncclStatGpuMemTotal)
              .finalize();
#undef VALUE

#define CONSTANT(since, name, value) m.attr(#name) = value;
#include "abi/constants.inc"
#undef CONSTANT

  StructClass<ncclConfig_t> config(
      m, "ncclConfig_t",
      "The configuration of a communicator, initialized by NCCL_CONFIG_INITIALIZER.");
#define FIELD(since, type, name, ...) config.field(#name, &ncclConfig_t::name);
#include "abi/config_fields.inc"
#undef FIELD
  StructClass<ncclCollConfig_t> coll_config(
      m, "ncclCollConfig_t",
      "The configuration of one collective, initialized by NCCL_COLLCONFIG_INITIALIZER.");
#define FIELD(since, type, name, ...) coll_config.field(#name, &ncclCollConfig_t::name);
#include "abi/coll_config_fields.inc"
#undef FIELD
  StructClass<ncclEncryptionConfig_t>(m, "ncclEncryptionConfig_t",
                                      "The encryption of NCCL's TCP sockets.")
      .field("mode", &ncclEncryptionConfig_t::mode)
      .field("psk", &ncclEncryptionConfig_t::psk);
  StructClass<ncclSimInfo_t>(
      m, "ncclSimInfo_t", "The result of ncclGroupSimulateEnd. estimatedTime is in microseconds.")
      .field("estimatedTime", &ncclSimInfo_t::estimatedTime);
  StructClass<ncclWaitSignalDesc_t>(m, "ncclWaitSignalDesc_t",
                                    "A peer and the number of its signals to wait for.")
      .field("opCnt", &ncclWaitSignalDesc_t::opCnt)
      .field("peer", &ncclWaitSignalDesc_t::peer)
      .field("sigIdx", &ncclWaitSignalDesc_t::sigIdx)
      .field("ctx", &ncclWaitSignalDesc_t::ctx)
      .type()
      .def(py::init([](int opCnt, int peer, int sigIdx, int ctx) {
             return ncclWaitSignalDesc_t{opCnt, peer, sigIdx, ctx};
           }),
           py::arg("opCnt") = 0, py::arg("peer") = 0, py::arg("sigIdx") = 0, py::arg("ctx") = 0);

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
#define FIELD(since, type, name, ...) requirements.field(#name, &ncclDevCommRequirements_t::name);
#include "abi/device_requirements_fields.inc"
#undef FIELD

  StructClass<ncclCommProperties_t> properties(
      m, "ncclCommProperties_t",
      "The properties of a communicator, initialized by NCCL_COMM_PROPERTIES_INITIALIZER. A "
      "library older than version returns an error: set size and version to those of the library.");
#define FIELD(since, type, name, ...) properties.field(#name, &ncclCommProperties_t::name);
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

  py::class_<ncclUniqueId>(m, "UniqueId",
                           R"(The id of a new communicator (ncclUniqueId).

One rank creates it with get_unique_id() and sends it to the others by any means. bytes(id) returns
its 128 bytes, UniqueId(data) restores it from them, and it can be pickled.

Args:
    data: 128 bytes, or a UniqueId.

Raises:
    TypeError: data is neither a UniqueId nor bytes.
    ValueError: data is not 128 bytes long.)")
      .def(py::init(
               [](const py::object& data) { return unique_id_from_python("data", data.ptr()); }),
           py::arg("data"))
      .def("__bytes__", &bytes_of)
      .def("__len__", [](const ncclUniqueId&) { return kUniqueIdBytes; })
      .def("__eq__",
           [](const ncclUniqueId& a, const py::object& other) {
             return py::isinstance<ncclUniqueId>(other) &&
                    std::memcmp(a.internal, py::cast<ncclUniqueId>(other).internal,
                                kUniqueIdBytes) == 0;
           })
      .def("__hash__", [](const ncclUniqueId& id) { return py::hash(bytes_of(id)); })
      .def("__repr__",
           [](const ncclUniqueId& id) {
             return "<pynccl.nccl.UniqueId " +
                    py::cast<std::string>(bytes_of(id).attr("hex")()).substr(0, 16) + "...>";
           })
      .def(py::pickle(
          [](const ncclUniqueId& id) { return bytes_of(id); },
          [](const py::bytes& data) { return unique_id_from_python("data", data.ptr()); }));
  m.def(
      "get_unique_id",
      [](const Library& library) {
        ncclUniqueId id;
        const GilReleased released;
        NCCL_CHECK(library, nullptr, -1, ncclGetUniqueId, (&id));
        return id;
      },
      py::arg("library"), "Create a UniqueId (ncclGetUniqueId).");
}

}  // namespace pynccl::python
