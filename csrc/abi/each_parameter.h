// Applies a macro to each parameter of an entry of nccl_functions.inc or driver_functions.inc. IN,
// OUT and the others are not macros here but are appended to a prefix, so that an entry can be
// expanded twice: with DECLARE_ for declarations, and with a prefix of the includer. The SCAN
// levels suffice for 27 parameters.
#pragma once

#define ABI_PARENTHESES ()
#define ABI_SCAN(...) ABI_SCAN2(ABI_SCAN2(ABI_SCAN2(__VA_ARGS__)))
#define ABI_SCAN2(...) ABI_SCAN1(ABI_SCAN1(ABI_SCAN1(__VA_ARGS__)))
#define ABI_SCAN1(...) ABI_SCAN0(ABI_SCAN0(ABI_SCAN0(__VA_ARGS__)))
#define ABI_SCAN0(...) __VA_ARGS__
#define ABI_EACH(macro, ...) __VA_OPT__(ABI_SCAN(ABI_EACH_STEP(macro, __VA_ARGS__)))
#define ABI_EACH_STEP(macro, first, ...) \
  macro(first) __VA_OPT__(, ABI_EACH_AGAIN ABI_PARENTHESES(macro, __VA_ARGS__))
#define ABI_EACH_AGAIN() ABI_EACH_STEP

#define ABI_DECLARE(parameter) DECLARE_##parameter
#define DECLARE_IN(T, name) T name
#define DECLARE_OUT(T, name) T* name
#define DECLARE_OUTS(T, name, n) T* name
#define DECLARE_ARRAY(T, name, n) T* name
#define DECLARE_STRUCT(T, name) T* name
#define DECLARE_INOUT(T, name) T* name
#define DECLARE_FILLED(T, name) T* name
#define DECLARE_BUFFER(name, size, n) void* name
#define DECLARE_STRINGS(name, n) const char*** name

// Expands to the parameters of a C declaration.
#define ABI_DECLARATIONS(...) ABI_EACH(ABI_DECLARE __VA_OPT__(, ) __VA_ARGS__)
