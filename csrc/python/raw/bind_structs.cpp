// The enums and versioned structs of nccl.h under their own names, for pynccl.raw.
#include <pybind11/native_enum.h>

#include "python/call/bind.h"
#include "python/raw/structs.h"

namespace pynccl::python {
namespace {

template <class T>
void def_text(py::class_<Owned<T>>& type, const char* name, const char* T::* member) {
  type.def_property(
      name, [member](const Owned<T>& s) { return s.value.*member; },
      [member](Owned<T>& s, const py::object& text) { s.set(member, text); });
}

template <class T, class Value>
void def_value(py::class_<Owned<T>>& type, const char* name, Value T::* member) {
  type.def_property(
      name, [member](const Owned<T>& s) { return s.value.*member; },
      [member](Owned<T>& s, Value value) { s.value.*member = value; });
}

// A pointer in a struct is an integer in Python.
template <class T, class Pointer>
void def_address(py::class_<Owned<T>>& type, const char* name, Pointer T::* member) {
  type.def_property(
      name,
      [member](const Owned<T>& s) { return reinterpret_cast<std::uintptr_t>(s.value.*member); },
      [member](Owned<T>& s, std::uintptr_t value) {
        s.value.*member = reinterpret_cast<Pointer>(value);
      });
}

template <class T>
py::class_<Owned<T>> versioned(py::module_& m, const char* name, const char* doc) {
  py::class_<Owned<T>> type(m, name, doc);
  type.def(py::init<>());
  def_value(type, "size", &T::size);
  def_value(type, "magic", &T::magic);
  def_value(type, "version", &T::version);
  return type;
}

void def_field(py::class_<Owned<ncclConfig_t>>& type, const char* name,
               int ncclConfig_t::* member) {
  def_value(type, name, member);
}
void def_field(py::class_<Owned<ncclConfig_t>>& type, const char* name,
               const char* ncclConfig_t::* member) {
  def_text(type, name, member);
}

}  // namespace

void bind_enums(py::module_& m) {
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
}

void bind_structs(py::module_& m) {
  auto config = versioned<ncclConfig_t>(
      m, "ncclConfig_t",
      "The configuration of a communicator, initialized by NCCL_CONFIG_INITIALIZER.");
#define FIELD(since, type, name, attribute) def_field(config, #name, &ncclConfig_t::name);
#include "abi/config_fields.inc"
#undef FIELD

  auto coll = versioned<ncclCollConfig_t>(
      m, "ncclCollConfig_t",
      "The configuration of one collective, initialized by NCCL_COLLCONFIG_INITIALIZER.");
  def_address(coll, "ext", &ncclCollConfig_t::ext);
  def_value(coll, "minCTAs", &ncclCollConfig_t::minCTAs);
  def_value(coll, "maxCTAs", &ncclCollConfig_t::maxCTAs);
  def_value(coll, "nvlsCTAs", &ncclCollConfig_t::nvlsCTAs);
  def_value(coll, "cgaClusterSize", &ncclCollConfig_t::cgaClusterSize);
  def_text(coll, "algSelection", &ncclCollConfig_t::algSelection);
  def_value(coll, "forceAlgSelection", &ncclCollConfig_t::forceAlgSelection);
  def_value(coll, "CTAPolicy", &ncclCollConfig_t::CTAPolicy);
  def_value(coll, "userProfilerTag", &ncclCollConfig_t::userProfilerTag);
  def_address(coll, "launchCompletionEvent", &ncclCollConfig_t::launchCompletionEvent);

  auto encryption = versioned<ncclEncryptionConfig_t>(m, "ncclEncryptionConfig_t",
                                                      "The encryption of NCCL's TCP sockets.");
  def_value(encryption, "mode", &ncclEncryptionConfig_t::mode);
  def_text(encryption, "psk", &ncclEncryptionConfig_t::psk);

  py::class_<ncclSimInfo_t>(m, "ncclSimInfo_t", "The result of ncclGroupSimulateEnd.")
      .def(py::init<>())
      .def_readwrite("size", &ncclSimInfo_t::size)
      .def_readwrite("magic", &ncclSimInfo_t::magic)
      .def_readwrite("version", &ncclSimInfo_t::version)
      .def_readwrite("estimatedTime", &ncclSimInfo_t::estimatedTime,
                     "The estimated time in microseconds.");

  py::class_<ncclWaitSignalDesc_t>(m, "ncclWaitSignalDesc_t",
                                   "A peer and the number of its signals to wait for.")
      .def(py::init([](int opCnt, int peer, int sigIdx, int ctx) {
             return ncclWaitSignalDesc_t{opCnt, peer, sigIdx, ctx};
           }),
           py::arg("opCnt") = 0, py::arg("peer") = 0, py::arg("sigIdx") = 0, py::arg("ctx") = 0)
      .def_readwrite("opCnt", &ncclWaitSignalDesc_t::opCnt)
      .def_readwrite("peer", &ncclWaitSignalDesc_t::peer)
      .def_readwrite("sigIdx", &ncclWaitSignalDesc_t::sigIdx)
      .def_readwrite("ctx", &ncclWaitSignalDesc_t::ctx);
}

}  // namespace pynccl::python
