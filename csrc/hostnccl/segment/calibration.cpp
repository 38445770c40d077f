#include "hostnccl/segment/calibration.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <vector>

#include "hostnccl/base/process.h"
#include "hostnccl/kernels/copy.h"

namespace hostnccl {
namespace {

constexpr auto kTotalTime = std::chrono::milliseconds(30);    // at most
constexpr auto kTimePerPass = std::chrono::microseconds(50);  // of each time, about
constexpr int kPasses = 3;
constexpr size_t kMinRuns = 3;  // per pass
constexpr size_t kMaxRuns = 11;

constexpr int kSpins = 1000;  // between two checks of the clock

struct Late {};  // thrown at the deadline

using Work = CalibrationState::Work;

// One of the two ranks.
class Calibrator {
 public:
  Calibrator(Segment& segment, int rank)
      : segment_(segment),
        rank_(rank),
        own_(segment.rank_state(rank).calibration),
        peers_(segment.rank_state(1 - rank).calibration),
        out_(segment.pair_ring(rank, 1 - rank)),
        in_(segment.pair_ring(1 - rank, rank)),
        deadline_(Clock::now() + kTotalTime),
        sent_(Measurements::kLarge),
        received_(Measurements::kLarge) {
    own_.buffer = reinterpret_cast<uint64_t>(sent_.data());
  }
  Calibrator(const Calibrator&) = delete;
  Calibrator& operator=(const Calibrator&) = delete;
  ~Calibrator() { reset(); }

  Measurements lead() {
    Measurements found{};
    run({Work::Nothing});  // afterwards the address of the peer's buffer is known
    std::vector<Series> all{{{Work::Nothing}, &found.round_trip, {}}};
    const auto add = [&all](Work work, Measurements::Time& time) {
      work.bytes = Measurements::kSmall;
      all.push_back({work, &time.small, {}});
      work.bytes = Measurements::kLarge;
      all.push_back({work, &time.large, {}});
    };
    for (const bool streams : {false, true}) {
      add({Work::Message, streams}, found.message[streams]);
      add({Work::Exchange, streams}, found.exchange[streams]);
      add({Work::Blocks, streams}, found.blocks[streams]);
    }
    if (can_read_peer()) add({Work::Read}, found.direct);
    // A disturbance shorter than all passes affects only a part of the samples of each series.
    for (int pass = 0; pass < kPasses; ++pass) {
      for (Series& series : all) sample(series);
    }
    run({Work::End});
    reset();
    for (const int rank : {0, 1}) segment_.release_memory(rank);
    for (Series& series : all) {
      const Summary summary = summarize(series.samples);
      *series.median = summary.median;
      found.spread = std::max(found.spread, summary.spread);
    }
    found.seconds = std::time(nullptr);
    return found;
  }

  void follow() {
    for (uint32_t turn = 1;; ++turn) {
      await(peers_.turn, turn);
      const Work work = peers_.work;
      execute(work);
      if (work.kind == Work::End) reset();
      own_.turn.store(turn, std::memory_order_release);
      if (work.kind == Work::End) return;
    }
  }

 private:
  // Resets the flags that this rank writes to the values of a new segment.
  void reset() {
    out_.posted.signal(0);
    in_.taken.signal(0);
  }

  // Executes work on both ranks. Returns the time that it took, for a read only that of this rank.
  double run(const Work& work) {
    own_.work = work;
    const auto start = Clock::now();
    own_.turn.store(++turn_, std::memory_order_release);
    execute(work);
    if (work.kind != Work::Read) await(peers_.turn, turn_);
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    await(peers_.turn, turn_);
    return took.count();
  }

  // One of the measured times.
  struct Series {
    Work work;
    double* median;
    std::vector<double> samples;
  };

  // One pass.
  void sample(Series& series) {
    run(series.work);  // without a sample: the caches are those of other work
    const auto end = Clock::now() + kTimePerPass;
    for (size_t i = 0; i < kMinRuns || (i < kMaxRuns && Clock::now() < end); ++i) {
      series.samples.push_back(run(series.work));
    }
  }

  // The part of this rank in work.
  void execute(const Work& work) {
    const bool leads = rank_ == 0;
    const bool both = work.kind == Work::Exchange;
    if (work.kind == Work::Message || both) {
      transfer(both || leads ? work.bytes : 0, both || !leads ? work.bytes : 0, work.streams);
    } else if (work.kind == Work::Blocks) {
      exchange_blocks(work.bytes, work.streams);
    } else if (work.kind == Work::Read) {
      read_peer(work.bytes);
    }
  }

  // Moves data through the rings like messages of several pieces (operations/p2p.cpp).
  void transfer(size_t to_send, size_t to_receive, bool streams) {
    const auto cells = [](size_t bytes) { return static_cast<uint32_t>(bytes / kCellBytes); };
    const uint32_t send_end = out_.posted.load_own() + cells(to_send);
    const uint32_t receive_end = in_.taken.load_own() + cells(to_receive);
    uint32_t sent = out_.posted.load_own();
    uint32_t received = in_.taken.load_own();
    const char* from = sent_.data();
    char* to = received_.data();
    for (int spins = 1; sent != send_end || received != receive_end; ++spins) {
      while (sent != send_end && out_.taken.reached(sent + 1 - kCells)) {
        unsigned char* cell = out_.cells[sent % kCells].payload;
        stage(cell, from, kCellBytes, streams);
        from += kCellBytes;
        if (++sent % kSignalledCells == 0) out_.posted.signal(sent);
      }
      if (out_.posted.load_own() != sent) out_.posted.signal(sent);
      while (received != receive_end && in_.posted.reached(received + 1)) {
        std::memcpy(to, in_.cells[received % kCells].payload, kCellBytes);
        to += kCellBytes;
        if (++received % kSignalledCells == 0) in_.taken.signal(received);
      }
      if (in_.taken.load_own() != received) in_.taken.signal(received);
      pause(spins);
    }
  }

  // Moves data like a round of a collective (operations/collective.cpp).
  void exchange_blocks(size_t bytes, bool streams) {
    static_assert(Measurements::kLarge <= kStagingBytes);
    stage(segment_.rank_state(rank_).staging_buffers[0], sent_.data(), bytes, streams);
    out_.posted.signal(out_.posted.load_own() + 1);
    const uint32_t target = in_.taken.load_own() + 1;
    for (int spins = 1; !in_.posted.reached(target); ++spins) pause(spins);
    std::memcpy(received_.data(), segment_.rank_state(1 - rank_).staging_buffers[0], bytes);
    in_.taken.signal(target);
  }

  bool read_peer(size_t bytes) {
    return can_read(segment_.process(1 - rank_).pid, peers_.buffer, received_.data(), bytes);
  }

  bool can_read_peer() { return direct_reads_allowed() && read_peer(1); }

  void await(const std::atomic<uint32_t>& turn, uint32_t target) const {
    for (int spins = 1; turn.load(std::memory_order_acquire) != target; ++spins) pause(spins);
  }

  void pause(int spins) const {
    if (spins % kSpins != 0) return;
    if (Clock::now() > deadline_) throw Late{};
    sched_yield();  // the peer may need this CPU
  }

  Segment& segment_;
  const int rank_;
  CalibrationState& own_;
  CalibrationState& peers_;
  PairRing& out_;
  PairRing& in_;
  const Clock::time_point deadline_;
  std::vector<char> sent_;
  std::vector<char> received_;
  uint32_t turn_ = 0;
};

bool can_calibrate(const Segment& segment) {
  cpu_set_t cpus;
  CPU_OR(&cpus, &segment.rank_state(0).cpus, &segment.rank_state(1).cpus);
  return CPU_COUNT(&cpus) > 1;
}

}  // namespace

std::optional<Measurements> lead_calibration(Segment& segment) {
  if (!can_calibrate(segment)) return std::nullopt;
  try {
    const Measurements found = Calibrator(segment, 0).lead();
    if (plausible(found)) return found;
  } catch (const Late&) {
  }
  return std::nullopt;
}

void follow_calibration(Segment& segment) {
  if (!can_calibrate(segment)) return;
  try {
    Calibrator(segment, 1).follow();
  } catch (const Late&) {
  }
}

}  // namespace hostnccl
