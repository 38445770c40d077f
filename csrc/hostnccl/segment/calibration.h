// Calibration: measures how fast ranks 0 and 1 transfer data to each other, for the thresholds of
// base/tuning.h. It uses their staging buffers and rings before the first operation, and restores
// them.
#pragma once

#include <optional>

#include "hostnccl/base/tuning.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

// Ranks 0 and 1 call these together. They take about 4 ms and at most 30 ms. There is no result if
// the ranks were preempted too often, or ran on one CPU. A result may be disturbed: see calm().
std::optional<Measurements> lead_calibration(Segment& segment);
void follow_calibration(Segment& segment);

}  // namespace hostnccl
