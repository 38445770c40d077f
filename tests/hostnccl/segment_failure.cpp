// Prints how a rank sees the failure of a segment: one whose writer is preempted before it has
// written the text, and then in a wait that goes on, and in one whose flag was signalled before;
// and one whose writer is killed.
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "hostnccl/segment/segment.h"

namespace hostnccl {
const char* kernel_isa() { return "baseline"; }  // instead of linking the kernels
}  // namespace hostnccl

namespace {

void wait(const hostnccl::Segment& segment, const char* name,
          const hostnccl::WaitCondition& condition) {
  try {
    segment.check_owner(1, condition, false);
    std::printf("%s: no error\n", name);
  } catch (const hostnccl::Error& error) {
    std::printf("%s: %s\n", name, error.text().c_str());
  }
}

}  // namespace

int main() {
  using namespace hostnccl;
  const Fd file = Segment::make_file(2);
  const Segment segment(file.get(), 2);
  void* memory = mmap(nullptr, sizeof(Header), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  auto& header = *static_cast<Header*>(memory);
  Flag flag;
  wait(segment, "before the failure", {&flag, 1});
  header.failure = Header::Writing;
  std::thread writer([&header] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    header.error.set(Error(abi::ncclRemoteError, "rank 1 (pid 2) died"));
    header.failure = Header::Written;
  });
  const Error failure = segment.failure();
  std::printf("%d: %s\n", failure.code(), failure.text().c_str());
  writer.join();
  wait(segment, "not signalled", {&flag, 1});
  flag.signal(1);
  wait(segment, "signalled", {&flag, 1});

  header.failure = Header::Writing;  // the writer is killed
  const Segment same(file.get(), 2);
  const auto began = Clock::now();
  for (int i = 0; i < 3; ++i) std::printf("%s\n", same.failure().text().c_str());
  std::printf("waited %s\n", Clock::now() - began < std::chrono::seconds(2) ? "once" : "often");
}
