// What a process is, for those who compare the files of several: its rank, its machine.
#pragma once

#include <optional>
#include <string>

namespace pynccl {

// The rank of this process: set by set_process_rank(), else RANK from the environment; -1 without.
int process_rank();
// In place of RANK from the environment. None: RANK again.
void set_process_rank(std::optional<int> rank);

std::string host_name();
// Of the machine since its start: processes with the same one have the same clocks.
std::string boot_id();

// The path with the rank of the process, or "pid" and its process id, before its suffix.
std::string path_of_process(const std::string& path);

}  // namespace pynccl
