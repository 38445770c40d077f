// FlightDump: dumps the flight records of all communicators of this process as JSON (see
// docs/reliability.md). It does not use Python, so it works while all Python threads wait.
#pragma once

#include <optional>
#include <string>

namespace pynccl {

class FlightDump {
 public:
  // reason: why the dump is written; part of the dump.
  static std::string json(const std::string& reason);
  // Writes the dump to a file atomically, by renaming. Throws std::system_error.
  static void write(const std::string& path, const std::string& reason);

  // The file of this process: PYNCCL_FLIGHT_FILE followed by its rank, or by "pid" and its process
  // id. None if the variable is not set.
  static std::optional<std::string> default_path();

  // Writes the file of this process, if it has one. Errors are printed to stderr.
  static void write_default(const std::string& reason) noexcept;
  // Writes the file of this process when a communicator fails.
  static void observe();
  // From now on SIGUSR2 writes the file of this process, if it has one. Does nothing if the signal
  // already has a handler or is ignored.
  static void listen();
};

}  // namespace pynccl
