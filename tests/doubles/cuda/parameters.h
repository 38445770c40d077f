// Macros that use the parameter list of an entry of csrc/abi/*.inc twice: as declarations and as
// values. IN, OUT and so on must not be macros where an entry is used: they are pasted to DECLARE_
// and NAME_.
#pragma once

#define DOUBLE_PARENS ()
#define DOUBLE_SCAN(...) DOUBLE_SCAN2(DOUBLE_SCAN2(DOUBLE_SCAN2(__VA_ARGS__)))
#define DOUBLE_SCAN2(...) DOUBLE_SCAN1(DOUBLE_SCAN1(DOUBLE_SCAN1(__VA_ARGS__)))
#define DOUBLE_SCAN1(...) DOUBLE_SCAN0(DOUBLE_SCAN0(DOUBLE_SCAN0(__VA_ARGS__)))
#define DOUBLE_SCAN0(...) __VA_ARGS__
#define DOUBLE_EACH(macro, ...) __VA_OPT__(DOUBLE_SCAN(DOUBLE_EACH_STEP(macro, __VA_ARGS__)))
#define DOUBLE_EACH_STEP(macro, first, ...) \
  macro(first) __VA_OPT__(, DOUBLE_EACH_AGAIN DOUBLE_PARENS(macro, __VA_ARGS__))
#define DOUBLE_EACH_AGAIN() DOUBLE_EACH_STEP

#define DOUBLE_DECLARE(parameter) DECLARE_##parameter
#define DECLARE_IN(T, name) T name
#define DECLARE_OUT(T, name) T* name
#define DECLARE_OUTS(T, name, n) T* name
#define DECLARE_ARRAY(T, name, n) T* name
#define DECLARE_STRUCT(T, name) T* name
#define DECLARE_INOUT(T, name) T* name
#define DECLARE_BUFFER(name, size, n) void* name
#define DECLARE_STRINGS(name, n) const char*** name

#define DOUBLE_NAME(parameter) NAME_##parameter
#define NAME_IN(T, name) name
#define NAME_OUT(T, name) name
#define NAME_OUTS(T, name, n) name
#define NAME_ARRAY(T, name, n) name
#define NAME_STRUCT(T, name) name
#define NAME_INOUT(T, name) name
#define NAME_BUFFER(name, size, n) name
#define NAME_STRINGS(name, n) name

#define DOUBLE_DECLARATIONS(...) DOUBLE_EACH(DOUBLE_DECLARE __VA_OPT__(, ) __VA_ARGS__)
#define DOUBLE_NAMES(...) DOUBLE_EACH(DOUBLE_NAME __VA_OPT__(, ) __VA_ARGS__)
