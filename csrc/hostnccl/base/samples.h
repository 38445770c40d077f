// Samples of one measured time.
#pragma once

#include <algorithm>
#include <vector>

namespace hostnccl {

// A mean would include preemptions, and operations rarely reach the minimum.
struct Summary {
  double median;
  double spread;  // third quartile / first quartile
};

// Of at least one sample. Sorts them.
inline Summary summarize(std::vector<double>& samples) {
  std::sort(samples.begin(), samples.end());
  const size_t last = samples.size() - 1;
  const size_t quarter = last / 4;
  return {samples[(last + 1) / 2], samples[last - quarter] / samples[quarter]};
}

}  // namespace hostnccl
