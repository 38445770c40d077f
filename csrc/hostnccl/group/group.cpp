#include "hostnccl/group/group.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string_view>

#include "hostnccl/base/delay.h"
#include "hostnccl/base/interrupt.h"
#include "hostnccl/streams/capture.h"

namespace hostnccl {
namespace {

bool is_message_to_self(const PendingOperation& pending) {
  return is_message(pending.operation.kind) &&
         pending.operation.root_or_peer == pending.comm->rank();
}

bool connects_at_creation() {
  const char* text = std::getenv("NCCL_RUNTIME_CONNECT");
  return text != nullptr && std::string_view(text) == "0";
}

// others: the later waits of the same call, for ranks that may die while this one is only late.
void sleep_until_met(const Communicator& comm, const Wait& wait, std::span<const Wait> others) {
  SpinBackoff backoff(comm.segment().competing_ranks());
  while (!wait.condition.met())
    if (!backoff.wait()) break;
  if (wait.condition.met()) return;
  const Sleeping sleeping(wait);
  sleep_until(wait.condition, [&](bool check_liveness) {
    comm.state().check_wait({wait.condition, wait.peer}, check_liveness);
    for (const Wait& other : others)
      if (!other.condition.met())
        comm.state().check_wait({other.condition, other.peer}, check_liveness);
    if (const auto reason = interruption())
      throw Error(reason->code(), comm.segment().name_of(comm.rank()) + " " + reason->text());
    if (const auto deadlock = Deadlocks::check()) throw Error(*deadlock);
  });
}

// Publishes that this rank calls the operation. Returns the waits that connect its ranks, none if
// an earlier operation has connected them.
std::vector<Wait> begin_connecting(const Communicator& comm, const Operation& operation) {
  Segment& segment = comm.segment();
  const int rank = comm.rank();
  const int peer = operation.root_or_peer;
  std::vector<Wait> waits;
  if (is_message(operation.kind)) {
    const bool sends = operation.kind == Kind::Send;
    PairRing& ring = sends ? segment.pair_ring(rank, peer) : segment.pair_ring(peer, rank);
    Flag& own = sends ? ring.sender_called : ring.receiver_called;
    Flag& other = sends ? ring.receiver_called : ring.sender_called;
    if (peer == rank || own.load_own() != 0) return waits;
    own.signal(1);
    waits.push_back({{&other, 1}, &comm, peer, operation});
  } else if (Flag& own = segment.rank_state(rank).called;
             is_collective(operation.kind) && own.load_own() == 0) {
    own.signal(1);
    if (connects_at_creation()) return waits;
    for (int other = 0; other < comm.nranks(); ++other)
      if (other != rank)
        waits.push_back({{&segment.rank_state(other).called, 1}, &comm, other, operation});
  }
  return waits;
}

// Sleeps until the waits are over, one after the other. An error is an error of the communicator.
void wait_until_connected(Communicator& comm, const std::vector<Wait>& waits) {
  try {
    for (size_t i = 0; i < waits.size(); ++i)
      sleep_until_met(comm, waits[i], std::span(waits).subspan(i + 1));
  } catch (...) {
    throw comm.fail_operation(current_error());
  }
}

// In NCCL from 2.24 on, the first collective of a communicator connects all ranks, and the first
// message in a direction its two. In strict mode, the call of such an operation of a blocking
// communicator waits for the calls of the other ranks. All operations of a group begin before any
// of them waits, because several ranks may belong to this thread.
void connect_ranks(std::span<const PendingOperation> operations) {
  std::vector<std::pair<Ref<Communicator>, std::vector<Wait>>> all;
  for (const auto& [comm, operation, stream, event, window] : operations) {
    if (!comm->settings().strict_calls) continue;
    std::vector<Wait> waits = begin_connecting(*comm, operation);
    const CommSettings& settings = comm->settings();
    if (settings.blocking && settings.connects && !waits.empty())
      all.emplace_back(comm, std::move(waits));
  }
  for (const auto& [comm, waits] : all) wait_until_connected(*comm, waits);
}

// Rejects operations that NCCL runs, or retains for the next group, although the group is
// simulated.
void check_simulated(const PendingOperation& pending) {
  const CommSettings& settings = pending.comm->settings();
  if (!settings.strict) return;
  if (!settings.blocking) {
    fail(abi::ncclInvalidUsage,
         "ncclGroupSimulateEnd with a non-blocking communicator: NCCL runs its operations");
  }
  switch (const Kind kind = pending.operation.kind) {
    case Kind::AllReduce:
    case Kind::Broadcast:
    case Kind::Reduce:
    case Kind::AllGather:
    case Kind::ReduceScatter:
      return;
    default:
      fail(abi::ncclInvalidUsage,
           "ncclGroupSimulateEnd with %s: NCCL retains its messages for the next group",
           traits_of(kind).name);
  }
}

// Constants of the model, fitted to the tables of docs/performance.md (2 CPUs; 2 to 64 ranks, 4 B
// to 64 MB). The estimate is within a factor of 2 to 3 of them.
constexpr double kRankUs = 0.35;               // latency per rank, with a CPU for every rank
constexpr double kOversubscribedRankUs = 1.1;  // latency per rank, with more ranks than CPUs
constexpr double kMessageUs = 0.5;             // latency of a send or receive
constexpr double kCachedBytesPerUs = 30'000;   // one rank copying or reducing within the caches
constexpr double kUncachedBytesPerUs = 7'000;  // the same beyond kCachedBytes
constexpr double kCachedBytes = 4 << 20;

int available_cpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// The bytes that the busiest rank reads and writes.
double bytes_moved(const Operation& operation, int nranks) {
  const double block = static_cast<double>(operation.block_bytes());
  if (!is_collective(operation.kind)) return 2 * block;
  const CollectiveTraits& traits = traits_of(operation.kind);
  const double out = traits.block_per_destination ? block * nranks : block;
  if (nranks == 1) return out;
  // Each rank reduces one slice of an all-reduce and copies the other slices.
  if (operation.kind == Kind::AllReduce) return 3 * out;
  const bool from_all = traits.reduces || !traits.only_root_sends;
  return out + (from_all ? block * nranks : block);
}

double estimate(const PendingOperation& pending, int ncpus) {
  const int nranks = pending.comm->nranks();
  const double ranks_per_cpu = std::max(1.0, static_cast<double>(nranks) / ncpus);
  const double bytes = bytes_moved(pending.operation, nranks);
  const double cached = std::min(bytes, kCachedBytes);
  const double data = cached / kCachedBytesPerUs + (bytes - cached) / kUncachedBytesPerUs;
  if (!is_collective(pending.operation.kind)) return kMessageUs + data;
  return nranks * (ranks_per_cpu > 1 ? kOversubscribedRankUs : kRankUs) + ranks_per_cpu * data;
}

// The time of all operations in sequence, from a model of latency and bandwidth whose constants
// were measured on one machine. It ignores other load.
double estimate_microseconds(const std::vector<PendingOperation>& operations) {
  const int ncpus = available_cpus();
  double sum = 0;
  for (const PendingOperation& operation : operations) sum += estimate(operation, ncpus);
  return sum;
}

using Streams = std::vector<Ref<Stream>>;
using Events = std::vector<Ref<Event>>;

void run_inline(ProgressEngine& engine) {
  Delay::pause();
  const std::optional<Error> error = engine.run();
  engine.clear();
  if (error) throw *error;
}

Stream::Prepared prepare_on(const Ref<Stream>& stream, std::shared_ptr<ProgressEngine> engine) {
  return {stream, [engine = std::move(engine)] {
            if (const std::optional<Error> error = engine->run()) throw Error(*error);
          }};
}

std::shared_ptr<EventRecord> record_new_event(const Ref<Stream>& stream) {
  Event event(false);
  event.record(stream);
  return event.last_record();
}

void record_all(const Events& events, const Ref<Stream>& stream) {
  for (const Ref<Event>& event : events) event->record(stream);
}

// Prepares an engine that starts when all streams have reached this point. Later work of each
// stream waits for its end, and each stream inherits the failures of all of them.
void prepare_on_all(std::vector<Stream::Prepared>& prepared, const Streams& streams,
                    std::shared_ptr<ProgressEngine> engine, const Events& launch_events) {
  for (size_t i = 1; i < streams.size(); ++i) stream_wait(streams[0], record_new_event(streams[i]));
  record_all(launch_events, streams[0]);
  prepared.push_back(prepare_on(streams[0], std::move(engine)));
  if (streams.size() == 1) return;
  const auto done = std::make_shared<EventRecord>();
  prepared.emplace_back(streams[0],
                        [done, on = streams[0].get(), reported = streams[0]->reported_failure()] {
                          done->complete(on->failure_besides(reported));
                        });
  for (size_t i = 1; i < streams.size(); ++i) {
    prepared.emplace_back(streams[i], [done] {
      done->wait();
      done->throw_failure();
    });
  }
}

// Operations that share communicators or streams, directly or through others. They run in one
// engine or become one node of a graph.
struct Component {
  std::shared_ptr<ProgressEngine> engine;  // null: the inline engine, or a node
  Streams streams;
  Events launch_events;
  bool has_calling_thread = false;
  std::vector<Graph::NodeOperation> captured;  // the operations of a node

  static bool is_capturing(const Ref<Stream>& stream) { return stream->capturing(); }
  bool capturing() const { return std::ranges::any_of(streams, is_capturing); }
  void check() const {
    if (!capturing()) return;
    if (!has_calling_thread && std::ranges::all_of(streams, is_capturing)) return;
    fail(abi::ncclInvalidUsage,
         "some streams of a group are capturing and others are not, although they share a "
         "communicator: either all or none of them must be capturing");
  }

  void add(const Ref<Stream>& stream) {
    if (!stream) {
      has_calling_thread = true;
    } else if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
      streams.push_back(stream);
    }
  }
  ProgressEngine& own_engine() {
    if (!engine) engine = std::make_shared<ProgressEngine>();
    return *engine;
  }
};

// Returns for each operation the index of the representative of its component (union-find).
std::vector<size_t> find_components(const std::vector<PendingOperation>& operations) {
  std::vector<size_t> parent(operations.size());
  std::iota(parent.begin(), parent.end(), size_t{0});
  const auto representative = [&parent](size_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  std::map<const void*, size_t> first_with;  // of a communicator or a stream
  for (size_t i = 0; i < operations.size(); ++i) {
    const void* comm = operations[i].comm.get();
    const void* stream = operations[i].stream.get();  // null: the calling thread counts as a stream
    for (const void* shared : {comm, stream}) {
      const size_t first = first_with.try_emplace(shared, i).first->second;
      parent[representative(i)] = representative(first);
    }
  }
  for (size_t i = 0; i < operations.size(); ++i) parent[i] = representative(i);
  return parent;
}

// Starts one operation. inline_engine runs it if its stream is the calling thread.
void dispatch(const PendingOperation& operation, ProgressEngine& inline_engine) {
  if (operation.launch_event) operation.launch_event->record(operation.stream);
  if (operation.stream && operation.stream->capturing()) {
    return Capture::add_node(
        {operation.stream},
        std::vector<Graph::NodeOperation>{{operation.comm, operation.operation, operation.window}});
  }
  if (operation.stream) {
    const auto engine = std::make_shared<ProgressEngine>();
    engine->add(operation.comm, operation.operation, operation.window);
    engine->prepare();
    Stream::Prepared prepared = prepare_on(operation.stream, engine);
    const EnqueueLock lock({&operation.comm->order()});
    engine->take_sequences();
    return prepared.enqueue();
  }
  inline_engine.clear();
  inline_engine.add(operation.comm, operation.operation, operation.window);
  inline_engine.prepare();
  inline_engine.take_sequences();
  run_inline(inline_engine);
}

// Starts the operations of a group. Those that share a communicator or a stream, directly or
// through others, form a component and run in one engine, so no order of calls within a group can
// deadlock.
//  - A component on several streams runs on the first of them. Events order it after the work of
//    the others, and their later work after it.
//  - A component that includes the calling thread runs there, after the work of its streams.
//  - A component whose streams are capturing becomes one node of the graph.
void dispatch(const std::vector<PendingOperation>& operations, ProgressEngine& inline_engine) {
  inline_engine.clear();
  const auto has_stream = [](const PendingOperation& operation) {
    return static_cast<bool>(operation.stream);
  };
  if (std::none_of(operations.begin(), operations.end(), has_stream)) {
    for (const PendingOperation& operation : operations) {
      inline_engine.add(operation.comm, operation.operation, operation.window);
      if (operation.launch_event) operation.launch_event->record({});
    }
    inline_engine.prepare();
    inline_engine.take_sequences();
    return run_inline(inline_engine);
  }

  const std::vector<size_t> component_of = find_components(operations);
  std::vector<Component> components(operations.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    Component& component = components[component_of[i]];
    component.add(operations[i].stream);
    if (operations[i].launch_event) component.launch_events.push_back(operations[i].launch_event);
  }
  for (const Component& component : components) component.check();
  for (size_t i = 0; i < operations.size(); ++i) {
    const PendingOperation& operation = operations[i];
    Component& component = components[component_of[i]];
    if (component.capturing()) {
      component.captured.emplace_back(operation.comm, operation.operation, operation.window);
      continue;
    }
    ProgressEngine& engine = component.has_calling_thread ? inline_engine : component.own_engine();
    engine.add(operation.comm, operation.operation, operation.window);
  }
  for (Component& component : components) {
    if (component.captured.empty()) continue;
    record_all(component.launch_events, component.streams[0]);
    Capture::add_node(component.streams, std::move(component.captured));
  }

  // All steps that can fail precede the first sequence number: a number without its operation would
  // block the communicator.
  inline_engine.prepare();
  OperationOrders orders;
  std::vector<Stream::Prepared> prepared;
  std::vector<std::shared_ptr<EventRecord>> earlier;  // before the calling thread's operations
  for (Component& component : components) {
    if (component.engine) {
      component.engine->prepare();
      component.engine->add_orders(orders);
      prepare_on_all(prepared, component.streams, component.engine, component.launch_events);
    } else if (component.has_calling_thread) {
      for (const Ref<Stream>& stream : component.streams)
        earlier.push_back(record_new_event(stream));
    }
  }
  {
    const EnqueueLock lock(std::move(orders));
    inline_engine.take_sequences();
    for (Component& component : components) {
      if (component.engine) component.engine->take_sequences();
    }
    for (Stream::Prepared& callback : prepared) callback.enqueue();
  }
  // The operations run even after a failure, because they have their numbers.
  std::optional<Error> failure;
  try {
    for (const auto& record : earlier) {
      record->wait();
      record->throw_failure();
    }
  } catch (...) {
    failure = current_error();
  }
  for (Component& component : components) {
    if (component.has_calling_thread) record_all(component.launch_events, {});
  }
  try {
    run_inline(inline_engine);
  } catch (...) {
    if (!failure) failure = current_error();
  }
  if (!failure) return;
  for (const Component& component : components) {
    if (!component.has_calling_thread) continue;
    for (const Ref<Stream>& stream : component.streams) stream->set_failure(*failure);
  }
  throw Error(*failure);
}

}  // namespace

Group& Group::current() {
  thread_local Group group;
  return group;
}

void Group::set_error(const Error& error) {
  if (!error_) error_ = error;
}

bool Group::uses(const Ref<Communicator>& comm) const {
  for (const PendingOperation& pending : operations_) {
    if (pending.comm == comm) return true;
  }
  for (const Job& job : jobs_) {
    if (job.comm == comm || job.parent == comm) return true;
  }
  return false;
}

abi::ncclResult_t Group::submit(PendingOperation&& operation) {
  operation.comm->note_use(thread_);
  if (active()) {
    operations_.push_back(std::move(operation));
    return abi::ncclSuccess;
  }
  if (is_message_to_self(operation)) {
    fail(abi::ncclInvalidUsage, "rank %d sends to or receives from itself: call both in one group",
         operation.comm->rank());
  }
  connect_ranks({&operation, 1});
  dispatch_all(operation);
  return operation.comm->begin_issuing() ? abi::ncclInProgress : abi::ncclSuccess;
}

// An interrupt check may call this function while the engine of the thread runs.
template <typename Operations>
void Group::dispatch_all(const Operations& operations) {
  if (dispatching_) {
    ProgressEngine engine;
    return dispatch(operations, engine);
  }
  struct Scope {
    explicit Scope(bool& flag) : dispatching(flag = true) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { dispatching = false; }
    bool& dispatching;
  };
  const Scope scope(dispatching_);
  dispatch(operations, inline_engine_);
}

abi::ncclResult_t Group::submit(Job job) {
  if (job.parent) job.parent->note_use(thread_);
  if (!active()) return run_jobs(&job, 1);
  try {
    check_alike(job);
  } catch (...) {
    job.discard();
    throw;
  }
  jobs_.push_back(std::move(job));
  return abi::ncclSuccess;
}

// NCCL rejects a blocking creation together with a non-blocking one.
void Group::check_alike(const Job& job) const {
  const auto creates = [](const Job& one) { return one.comm && !one.parent; };
  if (!creates(job) || !job.comm->settings().strict_calls) return;
  for (const Job& other : jobs_) {
    if (creates(other) && other.blocking != job.blocking)
      fail(abi::ncclInvalidArgument, "a blocking and a non-blocking creation in one group");
  }
}

void Group::exit_level(const char* function) {
  if (depth_ == 0) {
    fail(abi::ncclInvalidUsage, "%s without ncclGroupStart in this thread", function);
  }
  --depth_;
}

abi::ncclResult_t Group::end() {
  exit_level("ncclGroupEnd");
  if (active()) return abi::ncclSuccess;
  try {
    check();
    // The interrupt check of a wait may call this group again.
    std::vector<PendingOperation> operations = std::exchange(operations_, {});
    const abi::ncclResult_t result = start_all(operations);
    clear();
    operations.clear();
    operations_ = std::move(operations);  // for its memory
    return result;
  } catch (...) {
    cancel_and_rethrow();
  }
}

std::optional<double> Group::end_simulated() {
  exit_level("ncclGroupSimulateEnd");
  if (active()) return std::nullopt;
  try {
    check();
    if (!jobs_.empty()) {
      fail(abi::ncclInvalidUsage, "ncclGroupSimulateEnd in a group that initializes communicators");
    }
    for (const PendingOperation& pending : operations_) check_simulated(pending);
    std::optional<double> microseconds;
    // NCCL copies immediately in a communicator of one rank.
    const auto copies = [](const PendingOperation& pending) {
      return pending.comm->settings().strict && pending.comm->nranks() == 1;
    };
    if (!std::ranges::all_of(operations_, copies))
      microseconds = estimate_microseconds(operations_);
    clear();
    return microseconds;
  } catch (...) {
    cancel_and_rethrow();
  }
}

// For catch blocks. Cancels the jobs that have not run, clears the group and throws.
void Group::cancel_and_rethrow() {
  const Error error = current_error();
  for (Job& job : jobs_) {
    const bool kept = job.comm && !job.parent && job.comm->settings().strict_calls;
    if (kept)
      job.comm->state().fail(error);  // as in NCCL, the caller must abort it
    else
      job.discard();
  }
  clear();
  throw error;
}

void Group::clear() {
  error_.reset();
  operations_.clear();
  jobs_.clear();
}

void Group::check() const {
  if (error_) throw *error_;
  bool to_self = false;
  bool has_events = false;
  for (const PendingOperation& pending : operations_) {
    to_self = to_self || is_message_to_self(pending);
    has_events = has_events || pending.launch_event;
  }
  if (to_self) check_messages_to_self();
  if (has_events) check_launch_events();
}

// A send of a rank to itself requires its receive in the same group, because a later receive starts
// only after this group has ended.
void Group::check_messages_to_self() const {
  std::map<Communicator*, int> balance;  // sends minus receives
  for (const PendingOperation& pending : operations_) {
    if (!is_message_to_self(pending)) continue;
    balance[pending.comm.get()] += pending.operation.kind == Kind::Send ? 1 : -1;
  }
  for (const auto& [comm, difference] : balance) {
    if (difference == 0) continue;
    fail(abi::ncclInvalidUsage, "rank %d has %d more %s itself than %s in this group", comm->rank(),
         std::abs(difference), difference > 0 ? "sends to" : "receives from",
         difference > 0 ? "receives" : "sends");
  }
}

// As in NCCL, where the operations of one communicator in a group are a single kernel launch.
void Group::check_launch_events() const {
  std::set<Communicator*> seen;
  for (const PendingOperation& pending : operations_) {
    if (!pending.launch_event || seen.insert(pending.comm.get()).second) continue;
    fail(abi::ncclInvalidUsage, "rank %d has more than one launchCompletionEvent in this group",
         pending.comm->rank());
  }
}

abi::ncclResult_t Group::start_all(const std::vector<PendingOperation>& operations) {
  abi::ncclResult_t result = abi::ncclSuccess;
  if (!jobs_.empty()) {
    std::vector<Job> jobs;
    jobs.swap(jobs_);
    result = run_jobs(jobs.data(), jobs.size());
  }
  if (operations.empty()) return result;
  connect_ranks(operations);
  dispatch_all(operations);
  bool continues = false;
  for (const PendingOperation& pending : operations)
    continues = pending.comm->begin_issuing() || continues;
  if (!continues) return result;
  for (const PendingOperation& pending : operations) {
    if (pending.comm->settings().blocking && pending.comm->nranks() > 1)
      pending.comm->state().begin_issuing(true);
  }
  return abi::ncclInProgress;
}

}  // namespace hostnccl
