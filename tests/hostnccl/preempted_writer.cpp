// Prints the failure of a segment whose writer is preempted before it has written the text.
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "hostnccl/segment/segment.h"

namespace hostnccl {
const char* kernel_isa() { return "baseline"; }  // instead of linking the kernels
}  // namespace hostnccl

int main() {
  using namespace hostnccl;
  const Fd file = Segment::make_file(2);
  const Segment segment(file.get(), 2);
  void* memory = mmap(nullptr, sizeof(Header), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  auto& header = *static_cast<Header*>(memory);
  header.failure = Header::Writing;
  std::thread writer([&header] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    header.error.set(Error(abi::ncclRemoteError, "rank 1 (pid 2) died"));
    header.failure = Header::Written;
  });
  const Error failure = segment.failure();
  std::printf("%d: %s\n", failure.code(), failure.text().c_str());
  writer.join();
}
