// All observers of the process.
#pragma once

namespace pynccl {

// Adds them. Called once, while the module is loaded.
void add_observers();

}  // namespace pynccl
