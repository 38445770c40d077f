#include "watch/json.h"

#include <array>
#include <cstdio>

namespace pynccl::json {

std::string quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      (quoted += '\\') += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> escaped;
      std::snprintf(escaped.data(), escaped.size(), "\\u%04x", c);
      quoted += escaped.data();
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string of(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.begin(), text.end(), value).ptr};
}

std::string object(std::initializer_list<std::pair<const char*, std::string>> members) {
  std::string text;
  for (const auto& [name, value] : members)
    text.append(text.empty() ? "{" : ", ").append(quoted(name)).append(": ").append(value);
  return text + "}";
}

}  // namespace pynccl::json
