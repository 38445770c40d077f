// Generates the seeds of the fuzz target, and runs it without libFuzzer:
//   seeds --write FOLDER     one file for each kind of message
//   seeds --mutate COUNT     COUNT mutated seeds, the same in every run
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "hostnccl/rendezvous/messages.h"

using namespace hostnccl;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

template <typename T>
Bytes bytes_of_message(const T& message) {
  const auto* begin = reinterpret_cast<const uint8_t*>(&message);
  return {begin, begin + sizeof message};
}

std::vector<Bytes> seeds() {
  JoinRequest request{};
  request.nranks = 8;
  request.rank = 3;
  request.pid = 4711;
  request.start = 99;
  Progress progress{};
  progress.joined.set(3);
  MemoryFile file{};
  file.rank = 7;
  return {bytes_of_message(Hello{}),
          bytes_of_message(Challenge{}),
          bytes_of_message(Answer{}),
          bytes_of_message(request),
          bytes_of_message(progress),
          bytes_of_message(Accepted{}),
          bytes_of_message(Failure::of(Error(abi::ncclRemoteError, "rank 1 (pid 2) died"))),
          bytes_of_message(file)};
}

int write(const std::string& folder) {
  int number = 0;
  for (const Bytes& seed : seeds()) {
    std::ofstream file(folder + "/seed-" + std::to_string(number++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) return 1;
  }
  return 0;
}

template <typename T>
bool accepts(const T& message) {
  return parse_message(std::as_bytes(std::span(&message, 1))).has_value();
}

bool accepts_rank(int64_t rank) {
  Progress progress{};
  progress.host_rank = rank;
  MemoryFile file{};
  file.rank = rank;
  const bool accepted = accepts(progress);
  if (accepts(file) != accepted) std::abort();
  return accepted;
}

bool accepts_request(int nranks, int rank, int64_t pid) {
  JoinRequest request{};
  request.nranks = nranks;
  request.rank = rank;
  request.pid = pid;
  return accepts(request);
}

bool accepts_failure(unsigned code, bool terminated = true) {
  Failure failure{};
  failure.code = code;
  if (!terminated) std::fill_n(failure.text, sizeof failure.text, 'x');
  return accepts(failure);
}

bool truncates_long_text() {
  const Failure failure = Failure::of(Error(abi::ncclRemoteError, std::string(5000, 'x')));
  return accepts(failure) && failure.error().text().size() == sizeof failure.text - 1;
}

// Tests the limits of each field, which random bytes rarely reach.
bool limits_hold() {
  return accepts_rank(0) && accepts_rank(kMaxRanks - 1) && !accepts_rank(-1) &&
         !accepts_rank(kMaxRanks) && accepts_request(1, 0, 1) &&
         accepts_request(kMaxRanks, kMaxRanks - 1, INT32_MAX) &&
         !accepts_request(kMaxRanks + 1, 0, 1) && !accepts_request(0, 0, 1) &&
         !accepts_request(4, 4, 1) && !accepts_request(4, -1, 1) && !accepts_request(4, 0, 0) &&
         !accepts_request(4, 0, int64_t{INT32_MAX} + 1) && !accepts_failure(abi::ncclSuccess) &&
         accepts_failure(1) && accepts_failure(abi::ncclNumResults - 1) &&
         !accepts_failure(abi::ncclNumResults) && !accepts_failure(abi::ncclInProgress) &&
         !accepts_failure(1, false) && truncates_long_text();
}

int mutate(long count) {
  std::mt19937 random(1);
  const std::vector<Bytes> all = seeds();
  long accepted = 0;
  for (long i = 0; i < count; ++i) {
    Bytes input = all[random() % all.size()];
    for (unsigned changes = random() % 4; changes != 0; --changes) {
      switch (random() % 4) {
        case 0:  // small numbers decide most ranges and kinds
          input[random() % std::min<size_t>(input.size(), 40)] =
              static_cast<uint8_t>(random() % 16);
          break;
        case 1:
          input[random() % input.size()] = static_cast<uint8_t>(random());
          break;
        case 2:
          input.resize(1 + random() % (input.size() + 8));
          break;
        default: {
          const Bytes& other = all[random() % all.size()];
          input.insert(input.end(), other.begin(), other.end());
        }
      }
    }
    accepted += parse_message(std::as_bytes(std::span(input))).has_value();
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%ld of %ld accepted\n", accepted, count);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string mode = count == 3 ? arguments[1] : "";
  if (mode == "--write") return write(arguments[2]);
  if (mode == "--mutate") return limits_hold() ? mutate(std::atol(arguments[2])) : 1;
  return 2;
}
