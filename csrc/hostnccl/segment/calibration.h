// Measures how fast rank 0 and rank 1 transfer data to each other, for the thresholds of
// base/tuning.h. Uses their staging buffers and rings before the first operation, and restores
// them.
#pragma once

#include <optional>

#include "hostnccl/base/tuning_model.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

// Rank 0 and rank 1 call these together. They take about 3 ms and at most 30 ms. There is no result
// if the ranks were interrupted too often, or have one CPU.
std::optional<Measurements> lead_calibration(Segment& segment);
void follow_calibration(Segment& segment);

}  // namespace hostnccl
