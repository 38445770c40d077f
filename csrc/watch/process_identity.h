// Identifies this process to tools that compare the files of several: its rank and its machine.
#pragma once

#include <optional>
#include <string>

namespace pynccl {

// The rank of this process: set by set_process_rank(), else RANK from the environment; -1 without.
int process_rank();
// Replaces RANK from the environment. None restores RANK.
void set_process_rank(std::optional<int> rank);

std::string host_name();
// Identifies the machine since its boot: processes with the same id share their clocks.
std::string boot_id();

// Returns the path with the rank of the process, or "pid" and its process id, before the suffix.
std::string path_of_process(const std::string& path);

}  // namespace pynccl
