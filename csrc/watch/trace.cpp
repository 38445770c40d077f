#include "watch/trace.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <stdexcept>
#include <utility>

#include "comm/communicator.h"
#include "comm/stream.h"
#include "comm/window.h"
#include "nccl/device.h"

namespace pynccl {
namespace {

constexpr std::size_t kCallBytes = 128;  // at least sizeof(TraceCall)

// The thread-local state that a call reads.
struct ThreadState {
  TraceLog* log = nullptr;
  std::uint32_t generation = 0;  // of the log
  TraceGroup* group = nullptr;
  bool uses_room = false;
  alignas(std::max_align_t) std::byte room[kCallBytes]{};
};
constinit thread_local ThreadState thread_state;

// Ends the log when the thread exits.
struct LogEnd {
  ~LogEnd() {
    if (thread_state.generation == TraceState::generation()) thread_state.log->end();
    thread_state.log = nullptr;
  }
};

[[gnu::noinline]] void make_log() {
  static thread_local LogEnd end;
  static_cast<void>(end);
  thread_state.generation = TraceState::generation();
  thread_state.log = &TraceState::get().make_log();
}

std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// Whether a call on the stream returns after its work is done.
bool blocks(const Library& library, CUstream stream) {
  return library.memory() == Memory::kHost && stream == nullptr;
}

// Records the first of an entry's two events. Null if the driver refuses it, which does not fail
// the traced call. A negative device is that of the stream.
std::unique_ptr<TraceTimes> times_of(const std::shared_ptr<Library>& library, int device,
                                     CUstream stream, bool in_graph = false) noexcept {
  try {
    if (device < 0) device = device_of(*library, stream);
    return std::make_unique<TraceTimes>(TraceState::get().clock(library, device), stream, in_graph);
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Records the second event of an entry, and stores both events in the entry.
void record_end(TraceEntry& entry, std::unique_ptr<TraceTimes>& times, CUstream stream) noexcept {
  if (!times) return;
  try {
    times->end(stream);
    if (times->in_graph) return TraceState::get().add_captured(entry, std::move(times));
    entry.began = static_cast<std::int64_t>(address(times.release()));
  } catch (const std::exception&) {
    times.reset();
  }
}

// The id of the capture that the stream takes part in, or 0.
std::uint64_t capture_of(const Library& library, CUstream stream) {
  return blocks(library, stream) ? 0 : std::uint64_t{capture_id(library, stream).value_or(0)};
}

// Marks the begin or end of a range on a stream. Its time is when the stream reaches it, unless it
// is captured.
void mark_on_stream(TraceEntry& entry, const std::shared_ptr<Library>& library, CUstream stream) {
  if (!library || blocks(*library, stream)) return;
  entry.flags |= TraceEntry::kOnDevice;
  if (capture_of(*library, stream) != 0) return;
  if (auto times = times_of(library, -1, stream))
    entry.began = static_cast<std::int64_t>(address(times.release()));
}

// Sets all members except the times.
[[gnu::always_inline]] inline void describe(TraceEntry& entry, OperationKind kind,
                                            const Operation& o) {
  entry.type = TraceEntry::Type::kOperation;
  entry.kind = static_cast<std::uint8_t>(plain(kind));
  entry.dtype = static_cast<std::uint8_t>(o.dtype);
  entry.op = static_cast<std::uint32_t>(o.op);
  entry.root_or_peer = o.root_or_peer;
  entry.count = o.count;
  entry.sendbuff = address(o.sendbuff);
  entry.recvbuff = o.window ? o.window->number() : address(o.recvbuff);
  entry.stream = address(o.stream);
  entry.offset = o.offset;
  entry.signal = o.signal;
  entry.context = o.context;
}

template <class Fill>
[[gnu::always_inline]] inline void append_filled(Fill&& fill) {
  ThreadState& own = thread_state;
  if (!own.log || own.generation != TraceState::generation()) [[unlikely]]
    make_log();
  for (;;) {
    const TraceLog::Room room = own.log->append(fill);
    if (room == TraceLog::Room::kEnough) [[likely]]
      return;
    if (room == TraceLog::Room::kHalf) return TraceState::get().wake();
    TraceState::get().collect();
  }
}

void append(const TraceEntry& entry) {
  append_filled([&](TraceEntry& slot) { slot = entry; });
}

// Called at the communicator's first use.
[[gnu::noinline]] std::uint32_t add_communicator(Communicator& communicator) {
  const std::uint32_t number = TraceState::get().number_of(communicator);
  const std::uint64_t generation = TraceState::generation();
  communicator.trace_number().store(generation << 32 | number, std::memory_order_relaxed);
  return number;
}

inline std::uint32_t number_of(Communicator& communicator) {
  const std::uint64_t known = communicator.trace_number().load(std::memory_order_relaxed);
  if (known >> 32 == TraceState::generation()) [[likely]]
    return static_cast<std::uint32_t>(known);
  return add_communicator(communicator);
}

// Appends an operation of a recording.
void record_operation(const OperationEvent& event) {
  const FlightRecorder& recorder = event.communicator.deadlines().recorder();
  const std::uint32_t number = number_of(event.communicator);
  append_filled([&](TraceEntry& entry) {
    describe(entry, event.kind, event.operation);
    entry.flags = TraceEntry::kCalled;
    entry.communicator = number;
    entry.group = 0;
    entry.called = event.time;
    entry.returned = entry.began = entry.ended = 0;
    entry.sequence = recorder.last();
    entry.number = recorder.number_of_last();
    entry.graph = 0;
  });
}

// An operation outside a group, from before its call to after it.
class TraceCall final : public Observation {
 public:
  explicit TraceCall(const OperationEvent& event)
      : communicator_(event.communicator),
        operation_(event.operation),
        now_(event.time),
        kind_(event.kind) {
    const FlightRecorder& recorder = communicator_.deadlines().recorder();
    sequence_ = recorder.last();
    number_ = recorder.number_of_last();
    if (!blocks(communicator_.library(), operation_.stream)) {
      flags_ |= TraceEntry::kOnDevice;
      graph_ = capture_of(communicator_.library(), operation_.stream);
      if (graph_ == 0 || Trace::times_graphs())
        times_ = times_of(communicator_.shared_library(), communicator_.device(), operation_.stream,
                          graph_ != 0);
    }
  }
  // The operation failed unless succeeded() was called.
  ~TraceCall() override {
    TraceEntry entry;
    fill(entry);
    if ((flags_ & TraceEntry::kFailed) == 0) record_end(entry, times_, operation_.stream);
    entry.returned = precise_time();
    append(entry);
  }

  void succeeded() override { flags_ &= static_cast<std::uint8_t>(~TraceEntry::kFailed); }

  // In thread-local memory. A nested operation, called by a signal handler, uses separate memory.
  static void* operator new(std::size_t bytes) {
    ThreadState& own = thread_state;
    if (std::exchange(own.uses_room, true)) [[unlikely]]
      return ::operator new(bytes);
    return own.room;
  }
  static void operator delete(void* memory) {
    ThreadState& own = thread_state;
    if (memory != own.room) return ::operator delete(memory);
    own.uses_room = false;
  }

 private:
  void fill(TraceEntry& entry) const {
    describe(entry, kind_, operation_);
    entry.flags = flags_;
    entry.communicator = number_of(communicator_);
    entry.group = 0;
    entry.called = now_;
    entry.returned = entry.began = entry.ended = 0;
    entry.sequence = sequence_;
    entry.number = number_;
    entry.graph = graph_;
  }

  Communicator& communicator_;
  const Operation& operation_;
  const std::int64_t now_;
  const OperationKind kind_;
  std::uint8_t flags_ = TraceEntry::kFailed;
  std::uint64_t sequence_ = 0, number_ = 0, graph_ = 0;
  std::unique_ptr<TraceTimes> times_;
};
static_assert(sizeof(TraceCall) <= kCallBytes);

// A graph launch.
class TraceLaunch final : public Observation {
 public:
  explicit TraceLaunch(const LaunchEvent& event) : stream_(event.stream) {
    entry_.type = TraceEntry::Type::kLaunch;
    entry_.graph = event.graph;
    entry_.stream = address(stream_);
    entry_.called = precise_time();
    if (blocks(*event.library, stream_)) return;
    entry_.flags |= TraceEntry::kOnDevice;
    if (Trace::times_graphs()) TraceState::get().before_launch(event.graph);
    times_ = times_of(event.library, event.device, stream_);
  }
  ~TraceLaunch() override {
    if (times_ && Trace::times_graphs())
      TraceState::get().after_launch(entry_, times_->clock, stream_);
    record_end(entry_, times_, stream_);
    entry_.returned = precise_time();
    append(entry_);
  }

 private:
  CUstream stream_;
  std::unique_ptr<TraceTimes> times_;
  TraceEntry entry_;
};

class TraceSink final : public Observer {
 public:
  std::unique_ptr<Observation> called(const OperationEvent& event) override {
    if (event.in_group) {
      if (Trace::on()) TraceGroup::add(event.communicator, event.operation);
      return nullptr;
    }
    if (Trace::recorded()) record_operation(event);
    if (!Trace::timed()) return nullptr;
    return std::make_unique<TraceCall>(event);
  }
  void operation_failed(Communicator& communicator) override {
    if (!Trace::recorded()) return;
    TraceEntry entry;
    entry.type = TraceEntry::Type::kFailure;
    entry.communicator = number_of(communicator);
    entry.called = precise_time();
    entry.sequence = communicator.deadlines().recorder().last();
    append(entry);
  }
  std::unique_ptr<Observation> waits(const WaitEvent& event) override {
    auto wait = event.library ? std::make_unique<TraceWait>(event.what, *event.library,
                                                            event.device, event.stream)
                              : std::make_unique<TraceWait>(event.what, event.stream);
    if (event.event) wait->of(*event.event);
    return wait;
  }
  std::unique_ptr<Observation> launches(const LaunchEvent& event) override {
    return std::make_unique<TraceLaunch>(event);
  }
};

}  // namespace

void Trace::observe() { Observers::add(*new TraceSink, Observers::kCalled); }

std::uint64_t Trace::begin_range(const std::string& name, bool compute,
                                 const std::shared_ptr<Library>& library, CUstream stream) {
  if (!timed()) return 0;
  static std::atomic<std::uint64_t> ranges = 0;
  TraceEntry entry;
  entry.type = TraceEntry::Type::kRangeBegin;
  entry.sequence = ++ranges;
  entry.count = TraceState::get().name(name);
  if (compute) entry.flags |= TraceEntry::kCompute;
  entry.stream = address(stream);
  entry.called = precise_time();
  mark_on_stream(entry, library, stream);
  append(entry);
  return entry.sequence;
}

void Trace::end_range(std::uint64_t number, const std::shared_ptr<Library>& library,
                      CUstream stream) {
  if (number == 0 || !timed()) return;
  TraceEntry entry;
  entry.type = TraceEntry::Type::kRangeEnd;
  entry.sequence = number;
  entry.stream = address(stream);
  entry.called = precise_time();
  mark_on_stream(entry, library, stream);
  append(entry);
}

TraceGroup::TraceGroup()
    : number_([] {
        static std::atomic<std::uint32_t> groups = 0;
        return ++groups;
      }()),
      called_(Trace::timed() ? precise_time() : coarse_time()),
      outer_(std::exchange(thread_state.group, this)) {}

void TraceGroup::use(Communicator& communicator, CUstream stream) {
  if (!Trace::timed()) return;
  const Library& library = communicator.library();
  const int device = communicator.device();
  const auto same = [&](const Used& one) {  // each device has its own default stream
    return one.stream == stream && one.device == device && one.library == &library;
  };
  if (std::any_of(used_.begin(), used_.end(), same)) return;
  Used used{&library, device, stream, blocks(library, stream), 0, nullptr};
  if (!used.blocks) used.graph = capture_of(library, stream);
  if (!used.blocks && (used.graph == 0 || Trace::times_graphs()))
    used.times = times_of(communicator.shared_library(), device, stream, used.graph != 0);
  used_.push_back(std::move(used));
}

void TraceGroup::add(Communicator& communicator, const Operation& o) {
  const TraceGroup* const group = thread_state.group;
  if (!group) return;
  TraceEntry entry;
  describe(entry, o.kind, o);
  entry.communicator = number_of(communicator);
  entry.called = group->called_;
  entry.group = group->number_;
  entry.sequence = communicator.deadlines().recorder().last();
  entry.number = communicator.deadlines().recorder().number_of_last();
  if (Trace::timed() && !blocks(communicator.library(), o.stream)) {
    entry.flags |= TraceEntry::kOnDevice;
    entry.graph = capture_of(communicator.library(), o.stream);
  }
  if (entry.graph != 0 && Trace::times_graphs()) TraceState::get().add_captured(entry, nullptr);
  append(entry);
}

TraceGroup::~TraceGroup() {
  thread_state.group = outer_;
  TraceEntry entry;
  entry.type = TraceEntry::Type::kGroupEnd;
  entry.flags = flags_;
  entry.group = number_;
  entry.called = called_;
  if (Trace::timed()) entry.returned = precise_time();
  for (Used& used : used_) {
    TraceEntry of_stream = entry;
    of_stream.stream = address(used.stream);
    if (!used.blocks) of_stream.flags |= TraceEntry::kOnDevice;
    of_stream.graph = used.graph;
    record_end(of_stream, used.times, used.stream);
    append(of_stream);
  }
  if (used_.empty()) append(entry);
}

TraceWait::TraceWait(What what, CUstream waited_for) : on_(Trace::timed()) {
  if (!on_) return;
  entry_.type = TraceEntry::Type::kWait;
  entry_.kind = static_cast<std::uint8_t>(what);
  entry_.stream = address(waited_for);
  entry_.called = precise_time();
}

TraceWait::TraceWait(What what, const std::shared_ptr<Library>& library, int device,
                     CUstream stream)
    : TraceWait(what, stream) {
  if (!on_ || blocks(*library, stream)) return;
  stream_ = stream;
  if (capture_of(*library, stream) != 0) {
    entry_.called = 0;  // not traced: it waits in each launch of the graph
    return;
  }
  entry_.flags |= TraceEntry::kOnDevice;
  library_ = library;
  times_ = times_of(library, device, stream);
}

void TraceWait::of(Communicator& communicator, std::uint64_t sequence) {
  if (!on_) return;
  entry_.communicator = number_of(communicator);
  entry_.sequence = sequence;
}

void TraceWait::of(const Event& event) {
  if (!on_) return;
  entry_.number = static_cast<std::uint64_t>(event.recorded_at());
  entry_.recvbuff = address(event.recorded_on());
}

TraceWait::~TraceWait() {
  if (!on_ || entry_.called == 0) return;
  // Waiting for an event of a capture joined that capture, so the wait runs in each graph launch.
  if (times_ && capture_of(*library_, stream_) != 0) return;
  record_end(entry_, times_, stream_);
  entry_.returned = precise_time();
  append(entry_);
}

}  // namespace pynccl
