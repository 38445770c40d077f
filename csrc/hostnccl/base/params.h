// Environment parameters: the table of the HOSTNCCL_* variables, their types and defaults. The
// engine reads its values here, and ncclParam* returns the same values.
//
// A cached parameter is read once per process, any other one each time it is needed. The settings
// of a single communicator are in segment/comm_settings.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "hostnccl/base/error.h"

namespace hostnccl {

enum class ParamId : uint8_t {
  InitTimeout,
  Cma,
  Isa,
  SpinUs,
  DirectBytes,
  DirectBytesInProcess,
  DirectAllGatherBytes,
  DirectRootedBytes,
  DirectReductionBytes,
  DirectMessageBytes,
  DirectExchangeBytes,
  DirectMessageBytesInProcess,
  WindowBytes,
  StreamBytes,
  Tuning,
  TuningFile,
  Strict,
  Connect,
  DeadlockMs,
  DelaySeed,
};

enum class ParamType : uint8_t { Bool, Int64, Uint64, Text };

struct Param {
  const char* key;
  ParamType type;
  bool cached;
  uint64_t min, max;         // of a number
  const char* default_text;  // null for HOSTNCCL_ISA, whose default depends on the CPU
  const char* description;
  // For a Text: the allowed values, separated by spaces. Null: any.
  const char* choices = nullptr;
  // The parameter whose value applies if the environment does not set this one.
  std::optional<ParamId> inherits = std::nullopt;
};

std::span<const Param> all_params();       // in the order of ParamId
const Param* find_param(const char* key);  // null if there is no such parameter

// Throws ncclInvalidArgument if the environment contains an invalid value for any parameter. Each
// new communicator checks all of them, because some later calls cannot report an error.
void check_params();

enum class ParamSource : uint8_t { Default, Measured, Environment };

// Replaces the default of a parameter by a measured value (base/tuning.h).
void set_measured(ParamId id, const std::string& text);

// Where the value in use comes from.
ParamSource param_source(ParamId id);
// The value of a Text in the environment. Throws ncclInvalidArgument if it is not one of the
// choices.
std::optional<std::string> given_choice(ParamId id);
uint64_t default_number(ParamId id);

// The value in use. Throws ncclInvalidArgument if the environment's value is invalid.
uint64_t param_number(ParamId id);  // 0 or 1 for a Bool
std::string param_text(ParamId id);

const char* type_name(ParamType type);

}  // namespace hostnccl
