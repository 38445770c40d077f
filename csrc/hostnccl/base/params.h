// The settings that come from the environment, in one table: what the engine reads, and what
// ncclParam* shows. Each is read once in a process, or for each communicator where the table says
// that it is not cached.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "hostnccl/base/error.h"

namespace hostnccl {

enum class Setting : uint8_t {
  InitTimeout,
  Cma,
  Isa,
  SpinUs,
  DirectBytes,
  DirectMessageBytes,
  WindowBytes,
  DelaySeed,
};

enum class ParamType : uint8_t { Bool, Int64, Uint64, Text };

struct Param {
  const char* key;
  ParamType type;
  bool cached;
  uint64_t least, most;  // of a number
  const char* fallback;  // where the environment gives nothing
  const char* meaning;
};

std::span<const Param> all_params();       // in the order of Setting
const Param* find_param(const char* key);  // null: there is none

// Whether the environment gives it; its value as what it is in this process. They throw where the
// environment gives something else than the type can hold.
bool is_given(Setting setting);
uint64_t number(Setting setting);  // of a bool 0 or 1
std::string text(Setting setting);

const char* type_name(ParamType type);

}  // namespace hostnccl
