// JSON output for the files that C++ writes: flight record dumps, traces and recordings.
#pragma once

#include <charconv>
#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "comm/flight_recorder.h"

namespace pynccl::json {

std::string quoted(std::string_view text);

template <std::integral T>
std::string of(T value) {
  return std::to_string(value);
}
inline std::string of(const std::string& text) { return quoted(text); }
inline std::string of(const char* text) { return quoted(text); }
std::string of(double value);

template <class T>
std::string or_null(bool known, const T& value) {
  return known ? of(value) : "null";
}

// 64-bit numbers as text, because JSON readers may only support doubles.
inline std::string hexadecimal(std::uint64_t value) { return quoted(FlightIdentity::text(value)); }
inline std::string hexadecimal_or_null(std::uint64_t value) {
  return value != 0 ? hexadecimal(value) : "null";
}

std::string object(std::initializer_list<std::pair<const char*, std::string>> members);

template <class List, class Text>
std::string array(const List& list, const char* separator, Text&& text) {
  std::string joined = "[";
  for (const auto& one : list) joined.append(joined.size() == 1 ? "" : separator).append(text(one));
  return joined + "]";
}

}  // namespace pynccl::json
