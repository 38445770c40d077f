// A process that creates one communicator after another, on a machine whose calibrations are
// planted: each line of the input has the samples of one. Prints whether it was wanted, and what
// the process then knows.
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "hostnccl/base/params.h"
#include "hostnccl/base/tuning.h"

namespace hostnccl {

const char* kernel_isa() { return "baseline"; }  // instead of linking the kernels

namespace {

void create_communicator(std::vector<double>& round_trips) {
  const bool wanted = measurement_wanted();
  if (wanted) {
    const Measurements::Time time{4000, 40000};
    Measurements found{0, {time, time}, {time, time}, {time, time}, time, 0, 1795752600};
    const Summary summary = summarize(round_trips);
    found.round_trip = summary.median;
    found.spread = summary.spread;
    if (plausible(found)) {
      adopt_measurements(found);
      save_measurements(found);
    }
  }
  known_measurements();  // reads the file again, which changes the text of HOSTNCCL_TUNING
  std::cout << (wanted ? "measures" : "does not measure") << ": " << param_text(ParamId::Tuning)
            << std::endl;
}

}  // namespace
}  // namespace hostnccl

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream text(line);
    std::vector<double> samples;
    for (double sample; text >> sample;) samples.push_back(sample);
    hostnccl::create_communicator(samples);
  }
}
