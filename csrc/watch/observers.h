// Registers all observers of the process.
#pragma once

namespace pynccl {

// Called once, when the module is loaded.
void add_observers();

}  // namespace pynccl
