#include "core/flight_dump.h"

#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/signals_blocked.h"
#include "core/deadlines.h"
#include "core/monitor.h"

namespace pynccl {
namespace {

constexpr int kFormatVersion = 1;

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

template <std::integral T>
std::string json_of(T value) {
  return std::to_string(value);
}
std::string json_of(const std::string& text) { return quoted(text); }
std::string json_of(const char* text) { return quoted(text); }

std::string json_of(double seconds) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.begin(), text.end(), seconds).ptr};
}

template <class T>
std::string json_or_null(bool known, const T& value) {
  return known ? json_of(value) : "null";
}

// What all 64 bits of are needed: readers of JSON may have floating-point numbers only.
std::string hexadecimal(std::uint64_t value) { return quoted(FlightIdentity::text(value)); }

std::string object(std::initializer_list<std::pair<const char*, std::string>> members) {
  std::string text;
  for (const auto& [name, value] : members)
    text.append(text.empty() ? "{" : ", ").append(quoted(name)).append(": ").append(value);
  return text + "}";
}

template <class List, class Text>
std::string array(const List& list, const char* separator, Text&& text) {
  std::string joined = "[";
  for (const auto& one : list) joined.append(joined.size() == 1 ? "" : separator).append(text(one));
  return joined + "]";
}

std::string record_json(const FlightRecord& r, bool done, std::int64_t epoch) {
  return object({
      {"sequence", json_of(r.sequence)},
      {"operation", json_of(kind_name(r.kind))},
      {"number", json_or_null(r.number != 0, r.number)},
      {"dtype", json_of(dtype_name(r.dtype))},
      {"count", json_of(r.count)},
      {"op", json_or_null(reduces(r.kind), op_name(r.op))},
      {"root", json_or_null(has_root(r.kind), r.root_or_peer)},
      {"peer", json_or_null(has_peer(r.kind), r.root_or_peer)},
      {"state", json_of(r.state_name(done))},
      {"time_created_ns", json_of(r.issued + epoch)},
      {"stream", hexadecimal(reinterpret_cast<std::uintptr_t>(r.stream))},
      {"fingerprint", hexadecimal(r.fingerprint)},
  });
}

std::string communicator_json(Deadlines& deadlines, std::int64_t epoch) {
  deadlines.update();
  const FlightRecorder& recorder = deadlines.recorder();
  const FlightIdentity is = recorder.identity();
  const std::string failure = recorder.failure();
  const std::int64_t limit = deadlines.own_limit();
  return object({
      {"id", hexadecimal(is.id)},
      {"joined", is.joined != 0 ? hexadecimal(is.joined) : "null"},
      {"parent", is.parent != 0 ? hexadecimal(is.parent) : "null"},
      {"name", json_or_null(!is.name.empty(), is.name)},
      {"creator", json_of(is.creator)},
      {"rank", json_or_null(is.rank >= 0, is.rank)},
      {"nranks", json_or_null(is.nranks > 0, is.nranks)},
      {"device", json_or_null(is.device >= 0, is.device)},
      {"timeout", json_or_null(limit != FlightRecord::kNoLimit, static_cast<double>(limit) / 1e9)},
      {"failure", json_or_null(!failure.empty(), failure)},
      {"calls", array(deadlines.calls(), ", ",
                      [&](const Deadlines::Entry& call) {
                        return object({{"function", json_of(call.function)},
                                       {"time_created_ns", json_of(call.began + epoch)}});
                      })},
      {"collectives", json_of(recorder.collectives())},
      {"records", array(recorder.read_all(), ",\n    ",
                        [&](const FlightRecord& record) {
                          return record_json(record, record.sequence <= deadlines.done(), epoch);
                        })},
  });
}

std::atomic<int> process_rank = -1;

// The rank of this process, or -1.
int rank_of_process() {
  if (const int rank = process_rank.load(); rank >= 0) return rank;
  const char* text = std::getenv("RANK");
  if (!text) return -1;
  const std::string_view value = text;
  int rank = -1;
  const auto [end, error] = std::from_chars(value.begin(), value.end(), rank);
  return error == std::errc() && end == value.end() ? rank : -1;
}

[[noreturn]] void throw_system(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

class File {
 public:
  explicit File(const std::string& path)
      : descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) throw_system(path);
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void write_all(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t written = ::write(descriptor_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_system("write");
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

 private:
  int descriptor_;
};

sem_t requested;  // a dump, by the handler
std::atomic<pid_t> listening = 0;

void request(int) { sem_post(&requested); }

void write_requested() {
  for (;;)
    if (sem_wait(&requested) == 0) FlightDump::write_default("SIGUSR2");
}

}  // namespace

std::string FlightDump::json(const std::string& reason) {
  const std::int64_t epoch = epoch_of_clock();
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const int rank = rank_of_process();
  return object({
             {"format", json_of("pynccl flight record")},
             {"version", json_of(kFormatVersion)},
             {"reason", json_of(reason)},
             {"host", json_of(host.data())},
             {"pid", json_of(getpid())},
             {"rank", json_or_null(rank >= 0, rank)},
             {"time_ns", json_of(coarse_time() + epoch)},
             {"communicators",
              array(Monitor::get().deadlines(), ",\n  ",
                    [&](const auto& deadlines) { return communicator_json(*deadlines, epoch); })},
         }) +
         "\n";
}

void FlightDump::write(const std::string& path, const std::string& reason) {
  const std::string text = json(reason);
  static std::atomic<int> writes = 0;  // several threads may write at once
  const std::string temporary =
      path + ".tmp" + std::to_string(getpid()) + "." + std::to_string(++writes);
  try {
    File(temporary).write_all(text);
    if (rename(temporary.c_str(), path.c_str()) != 0) throw_system(path);
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

std::optional<std::string> FlightDump::default_path() {
  const char* prefix = std::getenv("PYNCCL_FLIGHT_FILE");
  if (!prefix || !*prefix) return std::nullopt;
  const int rank = rank_of_process();
  return prefix +
         (rank >= 0 ? std::to_string(rank) : std::string("pid") + std::to_string(getpid()));
}

void FlightDump::set_rank(std::optional<int> rank) { process_rank = rank.value_or(-1); }

void FlightDump::write_default(const std::string& reason) noexcept {
  try {
    if (const auto path = default_path()) write(*path, reason);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pynccl: the flight record was not written: %s\n", error.what());
  }
}

// A child of fork() has the handler, but not the thread.
void FlightDump::listen() {
  const pid_t self = getpid();
  if (!default_path() || listening.exchange(self) == self) return;
  struct sigaction action{};
  sigaction(SIGUSR2, nullptr, &action);
  const bool own = action.sa_handler == &request;
  if (!own && action.sa_handler != SIG_DFL) return;
  sem_init(&requested, 0, 0);
  action.sa_handler = &request;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
  const common::SignalsBlocked blocked;  // inherited by the thread
  std::thread(&write_requested).detach();
}

}  // namespace pynccl
