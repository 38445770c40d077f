// Which traces and recordings are on.
#pragma once

#include <atomic>

namespace pynccl {

class TraceModes {
 public:
  // Whether anything is on, a recording, a trace, or a trace with graphs. Each is one load.
  static bool on() { return modes_.load(std::memory_order_relaxed) != 0; }
  static bool recorded() { return has(kRecorded); }
  static bool timed() { return has(kTimed); }
  static bool times_graphs() { return has(kGraphs); }

 private:
  friend class TraceState;

  enum Mode : unsigned { kTimed = 1, kRecorded = 2, kGraphs = 4 };
  static bool has(Mode mode) { return (modes_.load(std::memory_order_relaxed) & mode) != 0; }

  inline static std::atomic<unsigned> modes_ = 0;
};

}  // namespace pynccl
