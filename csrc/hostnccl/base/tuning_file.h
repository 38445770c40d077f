// The file that stores measurements until the machine boots again.
#pragma once

#include <optional>

#include "hostnccl/base/tuning_model.h"

namespace hostnccl {

// HOSTNCCL_TUNING_FILE, else hostnccl-tuning in XDG_RUNTIME_DIR, else /tmp/hostnccl-tuning-UID. A
// file is used only if it is regular, belongs to this user, is inaccessible to all others, and was
// written since the machine booted. Errors are not reported; the measurement is then repeated.
std::optional<Measurements> load_measurements();
void save_measurements(const Measurements& measured);

}  // namespace hostnccl
