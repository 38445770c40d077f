// TraceEntry: the entry of one call in a trace or a recording. Its bytes are the contents of a
// recording (docs/trace.md).
#pragma once

#include <cstdint>

namespace pynccl {

// Times are in nanoseconds of precise_time(). 0 means unknown.
struct TraceEntry {
  enum class Type : std::uint8_t {  // the numbers of a recording
    kOperation = 0,
    kGroupEnd = 1,  // one for each stream of a group, with the times of its operations
    kLaunch = 3,    // of a graph
    // Of a thread or stream; kind is a TraceWait::What. For an event: number is when it was
    // recorded, recvbuff its stream.
    kWait = 4,
    kRangeBegin = 5,  // of the user; sequence numbers the range, count its name
    kRangeEnd = 6,
    kFailure = 7,  // in a recording: an operation failed, whose entry was appended before the call
    kRun = 10,     // a run of a captured operation in a launch; called is the time of the launch
  };
  // kCalled: appended before the call, for the recording; the time of the call is coarse_time().
  // kOnDevice: the call does not return when the work is done.
  static constexpr std::uint8_t kFailed = 1, kCalled = 2, kOnDevice = 4, kCompute = 8;

  Type type = Type::kOperation;
  std::uint8_t kind = 0;   // OperationKind without kConfigured
  std::uint8_t dtype = 0;  // ncclDataType_t
  std::uint8_t flags = 0;
  std::uint32_t communicator = 0;  // from 1, in the order of the blocks of communicators
  std::int32_t root_or_peer = 0;
  std::uint32_t op = 0;      // ncclRedOp_t
  std::uint32_t thread = 0;  // the kernel's thread id
  std::uint32_t group = 0;   // from 1; 0: none
  std::int64_t called = 0;
  std::int64_t returned = 0;
  std::int64_t began = 0;  // when the stream reached it
  std::int64_t ended = 0;
  std::uint64_t sequence = 0;
  std::uint64_t number = 0;
  std::uint64_t count = 0;
  std::uint64_t sendbuff = 0;
  std::uint64_t recvbuff = 0;  // kPutSignal: the number of the window
  std::uint64_t stream = 0;
  std::uint64_t graph = 0;  // the id of its capture
  std::uint64_t offset = 0;
  std::int32_t signal = 0;
  std::int32_t context = 0;
};
static_assert(sizeof(TraceEntry) == 128);

}  // namespace pynccl
