// The dump of the flight records of all communicators of this process, as JSON: docs/reliability.md
// describes it. No function needs Python, so a dump is possible while all threads of Python wait.
#pragma once

#include <optional>
#include <string>

namespace pynccl {

class FlightDump {
 public:
  // reason: why it was made, for the reader.
  static std::string json(const std::string& reason);
  // Writes it to a file, which is complete at any time: it is renamed. Throws std::system_error.
  static void write(const std::string& path, const std::string& reason);

  // The file of this process: PYNCCL_FLIGHT_FILE followed by its rank, or by "pid" and its process
  // id. None where the variable is not set.
  static std::optional<std::string> default_path();

  // Writes the file of this process where it has one; what fails is a line on stderr.
  static void write_default(const std::string& reason) noexcept;
  // Writes the file of this process when a communicator fails.
  static void observe();
  // From now on SIGUSR2 writes the file of this process, where it has one. Does nothing where the
  // signal has a handler or is ignored.
  static void listen();
};

}  // namespace pynccl
