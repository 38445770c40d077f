// The parameters of an entry of csrc/abi/*.inc as the arguments of a call.
#pragma once

#include "abi/each_parameter.h"

#define DOUBLE_NAME(parameter) NAME_##parameter
#define NAME_IN(T, name) name
#define NAME_OUT(T, name) name
#define NAME_OUTS(T, name, n) name
#define NAME_ARRAY(T, name, n) name
#define NAME_STRUCT(T, name) name
#define NAME_INOUT(T, name) name
#define NAME_FILLED(T, name) name
#define NAME_BUFFER(name, size, n) name
#define NAME_STRINGS(name, n) name

#define DOUBLE_NAMES(...) ABI_EACH(DOUBLE_NAME __VA_OPT__(, ) __VA_ARGS__)
