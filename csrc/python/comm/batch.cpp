#include "python/comm/batch.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "comm/graph.h"
#include "comm/observer.h"
#include "comm/overlap.h"
#include "comm/window.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/convert/stream.h"
#include "watch/comparison.h"
#include "watch/profiler_ranges.h"
#include "watch/trace.h"

namespace pynccl::python {

void Batch::add(Communicator& communicator, const Operation& operation,
                std::initializer_list<PyObject*> held, PyObject* owner) {
  Library* library = &communicator.library();
  if (libraries_.empty() || libraries_.back() != library) {
    if (std::find(libraries_.begin(), libraries_.end(), library) == libraries_.end())
      libraries_.push_back(library);
  }
  for (PyObject* object : held)
    if (object) held_.push_back(py::reinterpret_borrow<py::object>(object));
  if (owner) owned_.push_back({entries_.size(), py::reinterpret_borrow<py::object>(owner)});
  entries_.push_back({&communicator, operation});
}

void Batch::hold(PyObject* object) { held_.push_back(py::reinterpret_borrow<py::object>(object)); }

void Batch::append(const Batch& other) {
  held_.insert(held_.end(), other.held_.begin(), other.held_.end());
  for (const Owned& one : other.owned_) owned_.push_back({entries_.size() + one.entry, one.owner});
  for (const Entry& entry : other.entries_) add(*entry.communicator, entry.operation, {});
}

void Batch::cut(const Mark& mark) {
  entries_.resize(mark.entries);
  libraries_.resize(mark.libraries);
  held_.resize(mark.held);
  owned_.erase(owned_.begin() + static_cast<std::ptrdiff_t>(mark.owned), owned_.end());
}

Batch Batch::on_stream(PyObject* stream) const {
  Batch moved = *this;
  for (Library* library : libraries_) {
    const cudaStream_t handle = stream_from_python(stream, *library);
    for (Entry& entry : moved.entries_)
      if (&entry.communicator->library() == library) entry.operation.stream = handle;
  }
  moved.held_.push_back(py::reinterpret_borrow<py::object>(stream));
  return moved;
}

void Batch::check_open() const {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Window* window = entries_[i].operation.window;
    const char* closed = entries_[i].communicator->closed() ? "communicator"
                         : window && window->closed()       ? "window"
                                                            : nullptr;
    if (closed) [[unlikely]]
      throw std::invalid_argument(std::string(closed) + ": it is closed, and operation " +
                                  std::to_string(i + 1) + " of " + std::to_string(entries_.size()) +
                                  " uses it; nothing was issued");
    entries_[i].communicator->handle();  // throws if it is suspended
  }
  check_alike();
}

// Refuses blocking and non-blocking communicators in one group: since 2.28, NCCL leaves the
// blocking ones in progress forever.
void Batch::check_alike() const {
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    Communicator& first = *entries_.front().communicator;
    Communicator& other = *entries_[i].communicator;
    if (other.blocking() == first.blocking() || &other.library() != &first.library()) continue;
    if (first.nranks() == 1 || other.nranks() == 1) continue;
    throw std::invalid_argument("group: operation 1 of " + std::to_string(entries_.size()) +
                                " uses a " + (first.blocking() ? "blocking" : "non-blocking") +
                                " communicator, and operation " + std::to_string(i + 1) +
                                " one that is not (Config.blocking); use a group for each");
  }
}

void Batch::check_overlap() const {
  OverlapCheck check(entries_.size());
  for (const Entry& entry : entries_) check.add(*entry.communicator, entry.operation);
  check.run();
}

py::list Batch::all_held() const {
  py::list objects;
  for (const py::object& object : held_) objects.append(object);
  for (const Owned& one : owned_) objects.append(one.owner);
  return objects;
}

// Calls visit(communicator, stream) once for each stream.
template <class Visit>
void Batch::each_stream(Visit&& visit) const {
  std::vector<CUstream> streams;
  for (const Entry& entry : entries_) {
    const CUstream stream = entry.operation.stream;
    if (std::find(streams.begin(), streams.end(), stream) != streams.end()) continue;
    streams.push_back(stream);
    visit(*entry.communicator, stream);
  }
}

void Batch::keep_alive_in_captures() const {
  const std::shared_ptr<void> held = python::hold(all_held());
  each_stream([&](Communicator& communicator, CUstream stream) {
    Graph::keep_alive(communicator.library(), stream, held);
  });
}

void Batch::keep_alive_until_done() const {
  const auto outlives = [](const Entry& entry) {
    return outlives_call(entry.communicator->library(), entry.operation.stream);
  };
  if (std::any_of(entries_.begin(), entries_.end(), outlives)) {
    const py::object held = all_held();
    each_stream([&](Communicator& communicator, CUstream stream) {
      if (outlives_call(communicator.library(), stream))
        python::keep_alive_until_done(communicator, stream, {held.ptr()}, nullptr);
    });
  }
  for (const Owned& one : owned_) {
    const Entry& entry = entries_[one.entry];
    if (!outlives(entry))
      python::keep_alive_until_done(*entry.communicator, entry.operation.stream, {},
                                    one.owner.ptr());
  }
}

// Communicator::Use for the communicators of all entries. The deadlines of each see one group.
class Batch::Uses {
 public:
  explicit Uses(const std::vector<Entry>& entries) : entries_(entries) {
    each([](Communicator& communicator) {
      communicator.begin_use();
      communicator.deadlines().begin_group();
    });
  }
  ~Uses() {
    each([](Communicator& communicator) {
      communicator.deadlines().end_group();
      communicator.end_use();
    });
  }
  Uses(const Uses&) = delete;
  Uses& operator=(const Uses&) = delete;

 private:
  // Calls f once for consecutive entries with the same communicator.
  template <class F>
  void each(F&& f) const {
    const Communicator* last = nullptr;
    for (const Entry& entry : entries_)
      if (std::exchange(last, entry.communicator) != entry.communicator) f(*entry.communicator);
  }

  const std::vector<Entry>& entries_;
};

// Opens one NCCL group per library, calls issue_one(communicator, operation) for its operations and
// closes it with end(group).
template <class Issue, class End>
void Batch::issue_groups(Issue&& issue_one, End&& end) const {
  const Uses uses(entries_);
  check_open();
  try {
    for (Library* library : libraries_) {
      GroupScope group(*library);
      // Waits for signals go last. NCCL runs the one-sided operations of a context in order, so a
      // wait in front of a put that another rank waits for would never end.
      bool waits = false;
      for (const Entry& entry : entries_) {
        if (entry.operation.kind == OperationKind::kWaitSignal)
          waits = true;
        else if (&entry.communicator->library() == library)
          issue_one(*entry.communicator, entry.operation);
      }
      if (waits)
        for (const Entry& entry : entries_)
          if (entry.operation.kind == OperationKind::kWaitSignal &&
              &entry.communicator->library() == library)
            issue_one(*entry.communicator, entry.operation);
      end(group);
    }
  } catch (const NcclFailure& failure) {
    Communicator::rethrow_failed(failure, entries_ | std::views::transform([](const Entry& entry) {
                                            return entry.communicator;
                                          }));
  }
}

// Lets the ranks compare the collectives before they are issued, if Config.check is set.
void Batch::compare() const {
  const auto compares = [](const Entry& entry) { return entry.communicator->check() != 0; };
  if (!Observers::operations() || std::ranges::none_of(entries_, compares)) return;
  check_open();  // a rank that cannot issue must not make the others wait
  std::vector<std::pair<Communicator*, const Operation*>> operations;
  operations.reserve(entries_.size());
  for (const Entry& entry : entries_) operations.emplace_back(entry.communicator, &entry.operation);
  Comparison::run(operations);
}

void Batch::run() const {
  if (Graph::any_capture()) [[unlikely]]
    keep_alive_in_captures();
  try {
    const GilReleased released;
    issue();
  } catch (...) {
    keep_alive_until_done();  // some of the operations may have been issued
    throw;
  }
  keep_alive_until_done();
}

void Batch::issue() const {
  compare();
  std::optional<ProfilerRanges::Range> range;
  if (ProfilerRanges::on()) [[unlikely]] {
    std::uint64_t nbytes = 0;
    for (const Entry& entry : entries_) nbytes += profiled_bytes(entry.operation);
    range.emplace(ProfilerRanges::Call{"group", nbytes, nullptr});
  }
  std::optional<TraceGroup> trace;
  if (Trace::on()) [[unlikely]] {
    trace.emplace();
    for (const Entry& entry : entries_) trace->use(*entry.communicator, entry.operation.stream);
  }
  issue_groups([](Communicator& communicator,
                  const Operation& operation) { communicator.issue_in_group(operation); },
               [this](GroupScope& group) {
                 if (!group.end()) return;
                 for (const Entry& entry : entries_)
                   entry.communicator->wait_issued("ncclGroupEnd");
               });
  if (trace) trace->succeeded();
}

// Refuses operations that NCCL would run instead: it simulates neither messages, which remain in
// its queue, nor operations of non-blocking communicators.
void Batch::check_simulated() const {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::string which =
        "operation " + std::to_string(i + 1) + " of " + std::to_string(entries_.size());
    if (!entries_[i].communicator->blocking())
      throw std::invalid_argument("simulate: the communicator of " + which +
                                  " is non-blocking; NCCL would run it");
    if (plain(entries_[i].operation.kind) > OperationKind::kReduceScatter)
      throw std::invalid_argument("simulate: " + which +
                                  " consists of messages; NCCL simulates all_reduce, broadcast, "
                                  "reduce, all_gather and reduce_scatter");
  }
}

std::optional<double> Batch::simulate() const {
  for (Library* library : libraries_) library->nccl<&NcclTable::ncclGroupSimulateEnd>();
  check_simulated();
  // In a communicator of one rank, NCCL would copy the data immediately.
  Batch several;
  for (const Entry& entry : entries_)
    if (entry.communicator->nranks() > 1) several.add(*entry.communicator, entry.operation, {});
  std::optional<double> sum = 0;
  several.issue_groups(
      [](Communicator& communicator, const Operation& operation) {
        communicator.simulate_in_group(operation);
      },
      [&](GroupScope& group) {
        const std::optional<double> seconds = group.end_simulated();
        sum = sum && seconds ? std::optional(*sum + *seconds) : std::nullopt;
      });
  return sum;
}

}  // namespace pynccl::python
