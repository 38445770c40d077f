// NCCL's C API: parameters, by key or by handle. A handle points to a row of the table in
// base/params.h.
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "hostnccl/api/nccl_api.h"
#include "hostnccl/base/params.h"
#include "hostnccl/base/tuning.h"

using namespace hostnccl;

namespace {

// The id of a parameter whose value is requested. Also loads the thresholds that were measured
// earlier.
ParamId id_of(const Param& param) {
  known_measurements();
  return static_cast<ParamId>(&param - all_params().data());
}

const Param& param_of(ncclParamHandle_t handle) {
  const auto* param = reinterpret_cast<const Param*>(non_null(handle, "h"));
  for (const Param& known : all_params()) {
    if (&known == param) return known;
  }
  fail(ncclInvalidArgument, "h=%p is not a handle from ncclParamBind", static_cast<void*>(handle));
}

const Param& param_of(const char* key) {
  const Param* param = find_param(non_null(key, "key"));
  if (param == nullptr) fail(ncclInvalidArgument, "key=\"%s\" is not a parameter of hostnccl", key);
  return *param;
}

[[noreturn]] void refuse_type(const Param& param, const char* wanted_type) {
  fail(ncclInvalidArgument, "%s has the type %s, not %s", param.key, type_name(param.type),
       wanted_type);
}

const char* name_of(ParamSource source) {
  static constexpr const char* kNames[] = {"default", "measured", "environment"};
  return kNames[static_cast<size_t>(source)];
}

// As in NCCL, a parameter can only be read as its own type.
template <typename T>
constexpr bool is_type(ParamType type) {
  return (std::is_same_v<T, int64_t> && type == ParamType::Int64) ||
         (std::is_same_v<T, uint64_t> && type == ParamType::Uint64);
}

template <typename T>
ncclResult_t get(ncclParamHandle_t handle, T* out, const char* wanted_type) {
  return guarded([=] {
    const Param& param = param_of(handle);
    non_null(out, "out");
    if (!is_type<T>(param.type)) refuse_type(param, wanted_type);
    *out = static_cast<T>(param_number(id_of(param)));
  });
}

// The bytes of the value.
std::vector<char> bytes_of(const Param& param) {
  const ParamId id = id_of(param);
  std::vector<char> bytes;
  if (param.type == ParamType::Text) {
    const std::string value = param_text(id);
    bytes.assign(value.c_str(), value.c_str() + value.size() + 1);
  } else {
    const uint64_t value = param_number(id);  // little-endian: the low bytes come first
    const char* begin = reinterpret_cast<const char*>(&value);
    bytes.assign(begin, begin + (param.type == ParamType::Bool ? sizeof(bool) : sizeof value));
  }
  return bytes;
}

// Strings returned to the caller stay valid until this thread's next call of the same function.
const char* store(std::string& storage, std::string value) {
  storage = std::move(value);
  return storage.c_str();
}

}  // namespace

extern "C" {

ncclResult_t ncclParamBind(ncclParamHandle_t* out, const char* key) {
  return guarded([=] {
    non_null(out, "out");
    *out = reinterpret_cast<ncclParamHandle_t>(const_cast<Param*>(&param_of(key)));
  });
}

#define GETTER(suffix, type) \
  ncclResult_t ncclParamGet##suffix(ncclParamHandle_t h, type* out) { return get(h, out, #type); }
GETTER(I8, int8_t)
GETTER(I16, int16_t)
GETTER(I32, int32_t)
GETTER(I64, int64_t)
GETTER(U8, uint8_t)
GETTER(U16, uint16_t)
GETTER(U32, uint32_t)
GETTER(U64, uint64_t)

ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char** out) {
  return guarded([=] {
    const Param& param = param_of(h);
    non_null(out, "out");
    if (param.type != ParamType::Text) refuse_type(param, type_name(ParamType::Text));
    thread_local std::string stored;
    *out = store(stored, param_text(id_of(param)));
  });
}

ncclResult_t ncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len) {
  return guarded([=] {
    const Param& param = param_of(h);
    non_null(out, "out");
    non_null(len, "len");
    if (maxLen <= 0) fail(ncclInvalidArgument, "maxLen=%d is not positive", maxLen);
    *len = 0;
    const std::vector<char> bytes = bytes_of(param);
    if (bytes.size() > static_cast<size_t>(maxLen)) {
      fail(ncclInvalidArgument, "maxLen=%d is less than the %zu bytes of %s", maxLen, bytes.size(),
           param.key);
    }
    std::memcpy(out, bytes.data(), bytes.size());
    *len = static_cast<int>(bytes.size());
  });
}

ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* valueLen) {
  return guarded([=] {
    const Param& param = param_of(key);
    non_null(value, "value");
    non_null(valueLen, "valueLen");
    thread_local std::string stored;
    *value = store(stored, param_text(id_of(param)));
    *valueLen = static_cast<int>(stored.size());
  });
}

ncclResult_t ncclParamGetAllParameterKeys(const char*** table, int* tableLen) {
  return guarded([=] {
    non_null(table, "table");
    non_null(tableLen, "tableLen");
    thread_local std::vector<const char*> stored;
    stored.clear();
    for (const Param& param : all_params()) stored.push_back(param.key);
    *table = stored.data();
    *tableLen = static_cast<int>(stored.size());
  });
}

// Prints to standard output, as NCCL does.
void ncclParamDumpAll() {
  guarded([] {
    for (const Param& param : all_params()) {
      const ParamId id = id_of(param);
      std::printf(
          "%s (%s) %s\n    value=%s set_by=%s default=%s\n", param.key, type_name(param.type),
          param.description, param_text(id).c_str(), name_of(param_source(id)),
          param.default_text != nullptr ? param.default_text : "the newest that the CPU has");
    }
    std::fflush(stdout);
  });
}

}  // extern "C"
