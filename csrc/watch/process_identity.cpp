#include "watch/process_identity.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace pynccl {
namespace {

std::atomic<int> given_rank = -1;

}  // namespace

int process_rank() {
  if (const int rank = given_rank.load(); rank >= 0) return rank;
  const char* text = std::getenv("RANK");
  if (!text) return -1;
  const std::string_view value = text;
  int rank = -1;
  const auto [end, error] = std::from_chars(value.begin(), value.end(), rank);
  return error == std::errc() && end == value.end() ? rank : -1;
}

void set_process_rank(std::optional<int> rank) { given_rank = rank.value_or(-1); }

std::string host_name() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return host.data();
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::string path_of_process(const std::string& path) {
  const int rank = process_rank();
  const std::string own =
      "." + (rank >= 0 ? std::to_string(rank) : "pid" + std::to_string(getpid()));
  const std::size_t name = path.find_last_of('/') + 1;  // 0 without a slash
  const std::size_t suffix = path.find_last_of('.');
  if (suffix == std::string::npos || suffix <= name) return path + own;
  return path.substr(0, suffix) + own + path.substr(suffix);
}

}  // namespace pynccl
