#include "watch/trace_state.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/communicator.h"
#include "comm/observer.h"
#include "common/per_process.h"
#include "common/signals_blocked.h"
#include "common/thread_id.h"
#include "nccl/clock.h"
#include "nccl/wait.h"
#include "watch/json.h"
#include "watch/process_identity.h"

namespace pynccl {
namespace {

constexpr std::chrono::milliseconds kInterval(50);  // between two collections
constexpr int kTraceFormat = 1;
constexpr char kMagic[] = "pynccl trace 1\n";
constexpr char kHeader = 'H', kEntries = 'E', kCommunicator = 'C', kName = 'N', kEnd = 'Z';
constexpr std::size_t kMaxInBlock = sizeof(TraceEntry) << 20;  // bytes

std::string names(auto&& name_of, int count) {
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) names.emplace_back(name_of(i));
  return json::array(names, ", ", [](const std::string& name) { return json::of(name); });
}

std::string header(bool timed) {
  const int rank = process_rank();
  return json::object({
      {"version", json::of(kTraceFormat)},
      {"timed", timed ? "true" : "false"},
      {"rank", json::or_null(rank >= 0, rank)},
      {"pid", json::of(getpid())},
      {"host", json::of(host_name())},
      {"boot", json::of(boot_id())},
      {"epoch", json::of(epoch_of_clock())},
      {"began", json::of(precise_time())},
      {"kinds", names([](int i) { return kind_name(static_cast<OperationKind>(i)); },
                      static_cast<int>(OperationKind::kWaitSignal) + 1)},
      {"dtypes",
       names([](int i) { return dtype_name(static_cast<ncclDataType_t>(i)); }, ncclNumTypes)},
      {"ops", names([](int i) { return op_name(static_cast<ncclRedOp_t>(i)); }, ncclNumOps)},
  });
}

std::string communicator_json(const FlightIdentity& identity, const char* provider) {
  return json::object({
      {"id", json::hexadecimal(identity.id)},
      {"joined", json::hexadecimal_or_null(identity.joined)},
      {"parent", json::hexadecimal_or_null(identity.parent)},
      {"name", json::or_null(!identity.name.empty(), identity.name)},
      {"creator", json::of(identity.creator)},
      {"provider", json::of(provider)},
      {"rank", json::of(identity.rank)},
      {"nranks", json::of(identity.nranks)},
      {"device", json::of(identity.device)},
  });
}

// Whether a recording includes the entry.
bool is_recorded(const TraceEntry& entry) {
  switch (entry.type) {
    case TraceEntry::Type::kOperation:
      return (entry.flags & TraceEntry::kCalled) != 0 || entry.group != 0;
    case TraceEntry::Type::kGroupEnd:
    case TraceEntry::Type::kFailure:
      return true;
    default:
      return false;
  }
}

void record(const Event& event, CUstream stream, bool in_graph) {
  in_graph ? event.record_in_graph(stream) : event.record(stream);
}

}  // namespace

std::uint32_t TraceTables::add_communicator(const std::shared_ptr<Deadlines>& deadlines,
                                            const char* provider) {
  sources_.push_back({deadlines, provider});
  communicators_.push_back(communicator_json(deadlines->recorder().identity(), provider));
  return static_cast<std::uint32_t>(sources_.size());
}

std::uint64_t TraceTables::add_name(const std::string& text) {
  const auto found = std::find(names_.begin(), names_.end(), text);
  if (found != names_.end()) return static_cast<std::uint64_t>(found - names_.begin());
  names_.push_back(text);
  return names_.size() - 1;
}

void TraceTables::update() {
  for (std::size_t i = 0; i < sources_.size(); ++i)
    if (const auto deadlines = sources_[i].deadlines.lock())
      communicators_[i] = communicator_json(deadlines->recorder().identity(), sources_[i].provider);
}

TraceWriter::TraceWriter(bool timed, std::uint64_t entries) : bytes_(kMagic), left_(entries) {
  write_block(kHeader, header(timed));
}

void TraceWriter::write_block(char type, std::string_view text) {
  const std::array<char, 4> word = {type, 0, 0, 0};
  const auto size = static_cast<std::uint32_t>(text.size());
  bytes_.append(word.data(), word.size());
  bytes_.append(reinterpret_cast<const char*>(&size), sizeof size);
  bytes_.append(text);
}

std::string TraceWriter::take(const TraceTables& tables) {
  communicators_.resize(tables.communicators().size());
  for (std::size_t i = 0; i < communicators_.size(); ++i) {
    if (communicators_[i] == tables.communicators()[i]) continue;
    communicators_[i] = tables.communicators()[i];
    write_block(kCommunicator,
                "{\"number\": " + std::to_string(i + 1) + ", " + communicators_[i].substr(1));
  }
  for (; names_ < tables.names().size(); ++names_) write_block(kName, tables.names()[names_]);
  for (std::size_t done = 0; done < entries_.size(); done += kMaxInBlock)
    write_block(kEntries, std::string_view(entries_).substr(done, kMaxInBlock));
  entries_.clear();
  return std::exchange(bytes_, {});
}

std::string TraceWriter::take_last(const TraceTables& tables) {
  bytes_ = take(tables);
  const int rank = process_rank();
  write_block(kEnd, json::object({{"rank", json::or_null(rank >= 0, rank)},
                                  {"ended", json::of(precise_time())},
                                  {"dropped", json::of(dropped_)}}));
  return std::exchange(bytes_, {});
}

void TraceFile::write(const TraceEntry& entry) {
  if (error_ != 0) return writer_.drop();
  if (!writer_.reserve()) return;
  used_ = true;
  writer_.write(entry);
}

void TraceFile::flush(const TraceTables& tables) noexcept {
  if (!used_ || error_ != 0) return;
  try {
    write_all(writer_.take(tables));
  } catch (const std::system_error& error) {
    error_ = error.code().value();
    std::fprintf(stderr, "pynccl: the recording was stopped: %s\n", error.what());
  }
}

std::string TraceFile::finish(const TraceTables& tables) {
  if (used_ && error_ == 0) write_all(writer_.take_last(tables));
  if (error_ != 0) throw std::system_error(error_, std::generic_category(), name_);
  return name_;
}

// Publishes the file under its final name at once, so that it can be read while it grows or after a
// crash.
void TraceFile::write_all(std::string_view bytes) {
  if (!file_) {
    name_ = path_of_process(path_);
    file_ = std::make_unique<common::NewFile>(name_);
    file_->publish();
  }
  file_->write_all(bytes);
}

TraceTimes::TraceTimes(TraceClock& clock_of_device, CUstream stream, bool is_in_graph)
    : clock(clock_of_device), in_graph(is_in_graph), began(clock.acquire()) {
  record(*began, stream, in_graph);
}

// Leaks the events of a graph, because it is unknown when the graph is destroyed.
TraceTimes::~TraceTimes() {
  if (!in_graph) return;
  static auto& kept = *new std::deque<PooledEvent>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(began));
  if (ended) kept.push_back(std::move(*ended));
}

void TraceTimes::end(CUstream stream) {
  ended.emplace(clock.acquire());
  record(**ended, stream, in_graph);
}

bool TraceTimes::done() const {
  return (ended ? (*ended)->query() : began->query()) && clock.has_base();
}

void TraceTimes::read(TraceEntry& entry) const {
  entry.began = clock.time_of(*began, entry.called);
  if (ended) entry.ended = clock.time_of(**ended, entry.called);
}

TraceState& TraceState::get() { return common::per_process<TraceState>(); }

TraceLog& TraceState::make_log() {
  const std::lock_guard lock(logs_mutex_);
  return *logs_.emplace_back(
      std::make_unique<TraceLog>(static_cast<std::uint32_t>(common::thread_id())));
}

std::uint32_t TraceState::number_of(Communicator& communicator) {
  const char* const provider = communicator.library().memory() == Memory::kHost ? "host" : "cuda";
  const std::lock_guard lock(tables_mutex_);
  return tables_.add_communicator(communicator.shared_deadlines(), provider);
}

std::uint64_t TraceState::name(const std::string& text) {
  const std::lock_guard lock(tables_mutex_);
  return tables_.add_name(text);
}

TraceClock& TraceState::clock(const std::shared_ptr<Library>& library, int device) {
  const std::lock_guard lock(clocks_mutex_);
  for (const auto& clock : clocks_) {
    if (clock->device() != device || &clock->library() != library.get()) continue;
    clock->use();
    return *clock;
  }
  const RelaxedMode relaxed(*library);
  return *clocks_.emplace_back(std::make_unique<TraceClock>(library, device));
}

void TraceState::add_captured(const TraceEntry& entry, std::unique_ptr<TraceTimes> times) {
  const std::lock_guard lock(mutex_);
  captured_[entry.graph].operations.push_back({entry, std::move(times)});
}

void TraceState::before_launch(std::uint64_t graph) {
  const std::lock_guard lock(mutex_);
  const auto found = captured_.find(graph);
  if (found == captured_.end()) return;
  resolve_launch(found->second);
  for (const Pending& one : found->second.operations)  // captured during an earlier trace
    if (one.times) one.times->clock.use();
}

void TraceState::after_launch(const TraceEntry& launch, const TraceClock& clock, CUstream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = captured_.find(launch.graph);
  if (found == captured_.end()) return;
  CapturedGraph& graph = found->second;
  graph.called = launch.called;
  graph.launched.reset();
  try {
    PooledEvent event = clock.acquire();
    event->record(stream);
    graph.launched.emplace(std::move(event));
  } catch (const std::exception&) {  // the device has failed: its times remain unknown
  }
}

// Returns false if the launch is still in progress.
bool TraceState::resolve_launch(CapturedGraph& graph) {
  if (!graph.launched || !memory_) return true;
  try {
    if (!(*graph.launched)->query()) return false;
    std::map<std::pair<std::uint32_t, std::uint64_t>, const TraceTimes*> groups;
    for (const Pending& one : graph.operations)
      if (one.entry.type == TraceEntry::Type::kGroupEnd)
        groups[{one.entry.group, one.entry.stream}] = one.times.get();
    for (const Pending& one : graph.operations) {
      if (one.entry.type != TraceEntry::Type::kOperation) continue;
      const TraceTimes* const times =
          one.times ? one.times.get() : groups[{one.entry.group, one.entry.stream}];
      TraceEntry entry = one.entry;
      entry.type = TraceEntry::Type::kRun;
      entry.called = graph.called;
      if (times) times->read(entry);
      if (memory_->reserve()) pending_.push_back({entry, nullptr});
    }
  } catch (const std::exception&) {  // the device has failed: its times remain unknown
  }
  graph.launched.reset();
  return true;
}

bool TraceState::resolve_launches() {
  bool all = true;
  for (auto& [number, graph] : captured_)
    if (!resolve_launch(graph)) all = false;
  return all;
}

void TraceState::start(std::uint64_t operations, bool graphs) {
  const std::lock_guard lock(mutex_);
  if (memory_) throw std::invalid_argument("trace: one is already running");
  collect_locked();  // discards the entries of calls that ended after the last trace
  memory_.emplace(true, operations);
  switch_on(TraceModes::kTimed | (graphs ? TraceModes::kGraphs : 0u));
}

std::string TraceState::stop(double seconds) {
  {
    const std::lock_guard lock(mutex_);
    if (!TraceModes::timed()) throw std::invalid_argument("trace: none is running");
    switch_off(TraceModes::kTimed | TraceModes::kGraphs);
  }
  poll_until(seconds, [this] {
    update_clocks();
    const std::lock_guard lock(mutex_);
    collect_locked();
    return pending_.empty() && resolve_launches();
  });
  const std::lock_guard lock(mutex_);
  resolve_launches();
  resolve(true);
  const std::lock_guard tables_lock(tables_mutex_);
  tables_.update();
  std::string bytes = memory_->take_last(tables_);
  memory_.reset();
  const std::lock_guard clocks_lock(clocks_mutex_);
  for (const auto& clock : clocks_) clock->end_use();
  return bytes;
}

void TraceState::start_recording(const std::string& path, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (file_) throw std::invalid_argument("recording: one is already running");
  collect_locked();
  file_.emplace(path, bytes);
  switch_on(TraceModes::kRecorded);
}

std::string TraceState::stop_recording() {
  const std::lock_guard lock(mutex_);
  if (!file_) throw std::invalid_argument("recording: none is running");
  switch_off(TraceModes::kRecorded);
  collect_locked();
  const std::lock_guard tables_lock(tables_mutex_);
  tables_.update();
  struct Reset {
    std::optional<TraceFile>& file;
    ~Reset() { file.reset(); }
  } const reset{file_};
  return file_->finish(tables_);
}

void TraceState::collect() {
  const std::lock_guard lock(mutex_);
  collect_locked();
}

void TraceState::collect_locked() {
  {
    const std::lock_guard lock(logs_mutex_);
    std::erase_if(logs_, [this](const std::unique_ptr<TraceLog>& log) {
      const bool ended = log->ended();  // read first: no entry follows once it is true
      log->collect([this](const TraceEntry& entry) { take(entry); });
      return ended;
    });
  }
  if (file_) {
    const std::lock_guard lock(tables_mutex_);
    file_->flush(tables_);
  }
  resolve(false);
}

// Until it is taken, the began field of an entry contains a pointer to its events.
void TraceState::take(const TraceEntry& from) {
  TraceEntry entry = from;
  std::unique_ptr<TraceTimes> times(
      reinterpret_cast<TraceTimes*>(static_cast<std::uintptr_t>(std::exchange(entry.began, 0))));
  const bool called = (entry.flags & TraceEntry::kCalled) != 0;
  if (file_ && is_recorded(entry)) file_->write(entry);
  if (memory_ && !called && entry.type != TraceEntry::Type::kFailure && memory_->reserve())
    pending_.push_back({entry, std::move(times)});
}

void TraceState::resolve(bool last) {
  while (!pending_.empty()) {
    Pending& first = pending_.front();
    try {
      if (first.times) {
        if (first.times->done())
          first.times->read(first.entry);
        else if (!last)
          return;
      }
    } catch (const std::exception&) {  // the device has failed: its times remain unknown
    }
    if (memory_) memory_->write(first.entry);
    pending_.pop_front();
  }
}

void TraceState::switch_on(unsigned mode) {
  Observers::observe_operations();
  if ((mode & TraceModes::kTimed) != 0) Observers::observe_times();
  TraceModes::modes_.fetch_or(mode);
  if (std::exchange(running_, true)) return;
  const common::SignalsBlocked blocked;  // inherited by the thread
  std::thread([this] { run(); }).detach();
}

void TraceState::switch_off(unsigned mode) {
  TraceModes::modes_.fetch_and(~mode);
  Observers::stop_operations();
  if ((mode & TraceModes::kTimed) != 0) Observers::stop_times();
  changed_.notify_all();
}

const int TraceState::fork_handler_ = pthread_atfork(nullptr, nullptr, &reset_child);

void TraceState::reset_child() noexcept {
  generation_.fetch_add(1);
  const unsigned modes = TraceModes::modes_.exchange(0);
  if ((modes & TraceModes::kRecorded) != 0) Observers::stop_operations();
  if ((modes & TraceModes::kTimed) == 0) return;
  Observers::stop_operations();
  Observers::stop_times();
}

std::vector<TraceClock*> TraceState::update_clocks() {
  std::vector<TraceClock*> clocks;
  {
    const std::lock_guard lock(clocks_mutex_);
    for (const auto& clock : clocks_)
      if (clock->in_use()) clocks.push_back(clock.get());
  }
  for (TraceClock* clock : clocks) clock->update();
  return clocks;
}

void TraceState::run() {
  std::unique_lock lock(mutex_);
  while (TraceModes::on()) {
    changed_.wait_for(lock, kInterval);
    lock.unlock();
    const std::vector<TraceClock*> clocks = update_clocks();
    lock.lock();
    collect_locked();
    if (pending_.empty()) continue;
    for (TraceClock* clock : clocks) clock->forget_before(pending_.front().entry.called);
  }
  running_ = false;
}

}  // namespace pynccl
