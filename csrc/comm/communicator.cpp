// The creation of communicators: the NCCL calls, their time limit, and the identity.
#include "comm/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>

#include "abi/constants.h"
#include "nccl/device.h"
#include "nccl/wait.h"

namespace pynccl {
namespace {

constexpr double kExpirySeconds = 2;  // the limit of waits for an expiry, or after one

// hostSetInitTimeout: makes a library limit the creations by this thread itself. Negative: no
// limit.
using SetInitTimeout = void (*)(double seconds);

SetInitTimeout init_timeout_of(const Library& library) {
  return reinterpret_cast<SetInitTimeout>(library.symbol("hostSetInitTimeout"));
}

// The scope of such a limit, for the libraries that have one.
struct LibraryLimit {
  LibraryLimit(const std::vector<std::shared_ptr<Communicator>>& limited, double seconds)
      : communicators(limited) {
    set(seconds);
  }
  ~LibraryLimit() { set(-1); }

  void set(double seconds) const {
    for (const auto& one : communicators)
      if (const auto function = init_timeout_of(one->library())) function(seconds);
  }

  const std::vector<std::shared_ptr<Communicator>>& communicators;
};

std::uint64_t id_of(const std::vector<ncclUniqueId>& ids) {
  std::uint64_t id = 0;
  for (const ncclUniqueId& one : ids)
    for (std::size_t i = 0; i < sizeof one; i += sizeof id) {
      std::uint64_t word;
      std::memcpy(&word, reinterpret_cast<const char*>(&one) + i, sizeof word);
      id = FlightIdentity::mix(id, word);
    }
  return id;
}

}  // namespace

Communicator::Communicator(std::shared_ptr<Library> library, const Options& options)
    : library_(std::move(library)), options_(options) {
  options_.config = library_->fit(options_.config);
  // NCCL refuses minCTAs alone, because it compares it with maxCTAs before that has a value.
  constexpr int kMaxCtas = 64;  // NCCL's maximum
  ncclConfig_t& config = options_.config;
  if (config.minCTAs != kUndefInt && config.maxCTAs == kUndefInt)
    config.maxCTAs = std::max(config.minCTAs, kMaxCtas);
  if (!options_.on_timeout) options_.on_timeout = default_policy();
  if (options_.config.commName && !options_.inherits) identity_.name = options_.config.commName;
}

Communicator::~Communicator() { discard(); }

Communicator::Use::Use(Communicator& communicator) : communicator_(communicator) {
  communicator.begin_use();
  const State state = communicator.state_.load();
  if (state == State::kOpen || state == State::kExpired || state == State::kShrunk ||
      state == State::kSuspended || state == State::kUnready)
    return;
  if (state == State::kLent && communicator.still_lent()) return;
  communicator.end_use();
  communicator.throw_not_open();
}

void Communicator::begin_init(int nranks, const std::vector<ncclUniqueId>& ids, int rank) {
  check_pending();
  const DeviceScope scope(*library_, options_.device);
  rank_ = rank;
  nranks_ = nranks;
  identity_.id = id_of(ids);
  if (ids.size() == 1) {
    const auto init = library_->nccl<&NcclTable::ncclCommInitRankConfig>();
    check(init(created_.get(), nranks, ids[0], rank, &options_.config), creator_);
    return;
  }
  creator_ = "ncclCommInitRankScalable";
  const auto init = library_->nccl<&NcclTable::ncclCommInitRankScalable>();
  std::vector<ncclUniqueId> own(ids);  // not const in nccl.h
  check(init(created_.get(), nranks, rank, static_cast<int>(own.size()), own.data(),
             &options_.config),
        creator_);
}

Communicator::Claim::Claim(const std::shared_ptr<Communicator>& communicator)
    : communicator_(communicator->root()) {
  const std::lock_guard lock(communicator_->mutex_);
  const auto self = std::this_thread::get_id();
  if (communicator_->claims_ != 0 && communicator_->claimed_by_ != self)
    throw std::invalid_argument(
        "communicator: another thread is creating a communicator from it, or registering or "
        "closing a window; only one thread at a time can do that");
  communicator_->claimed_by_ = self;
  ++communicator_->claims_;
}

Communicator::Claim::~Claim() {
  if (!communicator_) return;
  const std::lock_guard lock(communicator_->mutex_);
  --communicator_->claims_;
}

ncclWindow_t* Communicator::new_window() {
  const std::lock_guard lock(mutex_);
  return &windows_.emplace_back(nullptr);
}

bool Communicator::add_memory(void* address, WindowMemory memory) {
  const std::lock_guard lock(mutex_);
  return window_memory_.emplace(static_cast<char*>(address), memory).second;
}

std::uint64_t Communicator::open_memory(void* address, const Window* window) {
  const std::lock_guard lock(mutex_);
  WindowMemory& memory = window_memory_.at(static_cast<char*>(address));
  memory.number = ++registered_windows_;
  memory.window = window;
  return memory.number;
}

void Communicator::forget_window(void* address) {
  const std::lock_guard lock(mutex_);
  window_memory_.at(static_cast<char*>(address)).window = nullptr;
}

void Communicator::remove_memory(void* address) {
  const std::lock_guard lock(mutex_);
  window_memory_.erase(static_cast<char*>(address));
}

void Communicator::keep_until_closed(std::shared_ptr<void> memory) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(memory));
}

void Communicator::begin_child(Communicator& parent, const char* creator, bool shares, bool grows) {
  check_pending();
  parent.check_ready();
  parent.wait_for_expiry();  // its revocation would end the creation of the child
  parent_claim_ = std::make_unique<Claim>(parent.shared_from_this());
  const auto root = parent.root();
  if (root->growing_ && !grows)
    throw std::invalid_argument(
        "communicator: after get_unique_id(), call grow() before creating another communicator "
        "from it");
  root->growing_ = false;
  creator_ = creator;
  parent_ = parent.shared_from_this();
  {
    const std::lock_guard lock(mutex_);
    created_from_ = parent_;
  }
  if (shares && !parent.revoked_) {
    shared_parent_ = root;
    const std::lock_guard lock(root->mutex_);
    std::erase_if(root->shared_children_, [](const auto& child) { return child.expired(); });
    root->shared_children_.push_back(weak_from_this());
  }
  std::erase_if(root->children_, [](const auto& one) { return one.use_count() == 1 && *one; });
  root->children_.push_back(created_);
  parent.mark_in_progress();
}

ncclResult_t Communicator::call_parent(Communicator& parent,
                                       const std::function<ncclResult_t(ncclComm_t)>& call) {
  const ncclComm_t comm = parent.comm_.load();
  if (!parent.revoked_ || library_->reports_failed_work()) return call(comm);
  const auto result = std::make_shared<std::atomic<ncclResult_t>>(ncclSuccess);
  const auto called = [self = shared_from_this(), comm, call, result](Communicator&) {
    *result = call(comm);
  };
  const double seconds = seconds_from_limit(parent.deadlines_->limit());
  if (parent.call_within(seconds, called)) return *result;
  poll_until(kExpirySeconds, [&] { return parent.expired(); });  // the monitor expires it
  if (parent.expired()) throw parent.expiry(creator_.load());
  parent.throw_late(seconds, creator_);
}

void Communicator::begin_split(Communicator& parent, int color, int key) {
  const auto split = library_->nccl<&NcclTable::ncclCommSplit>();
  const Use use(parent);
  no_color_ = color == kSplitNoColor;
  begin_child(parent, "ncclCommSplit", parent.options_.config.splitShare == 1);
  derive_id(parent, {kSplit, ++parent.splits_, static_cast<std::uint64_t>(color)});
  const Waiting waiting(parent, creator_);
  waiting.check(call_parent(parent, [=, this](ncclComm_t comm) {
    return split(comm, color, key, created_.get(), child_config());
  }));
}

void Communicator::begin_shrink(Communicator& parent, std::vector<int> excluded, int flags) {
  const auto shrink = library_->nccl<&NcclTable::ncclCommShrink>();
  if (flags != 0) parent.clear_error();
  const Use use(parent);
  begin_child(parent, "ncclCommShrink", flags == 0 && parent.options_.config.shrinkShare == 1);
  identify_shrunk(parent, excluded);
  const bool was_revoked = parent.revoked_;
  if (flags != 0) parent.mark_revoked();
  const Waiting waiting(parent, creator_);
  try {
    waiting.check(call_parent(parent, [=, this](ncclComm_t comm) mutable {
      return shrink(comm, excluded.data(), static_cast<int>(excluded.size()), created_.get(),
                    child_config(), flags);
    }));
  } catch (const NcclFailure& failure) {
    // hostnccl checks the arguments first. NCCL ends the operations even if it then refuses the
    // call (init.cc:3184 of 2.30.7).
    if (failure.code == ncclInvalidArgument && library_->reports_failed_work())
      parent.mark_revoked(was_revoked);
    if (failure.code != ncclRemoteError || library_->reports_failed_work()) throw;
    throw NcclFailure(failure.code, failure.function, failure.rank,
                      std::string(failure.what()) +
                          "; NCCL does not shrink a communicator whose network has noticed that a "
                          "rank died: use recover(store=...)",
                      failure.missing);
  }
  if (flags != 0) parent.mark_shrunk();
}

// NCCL refuses to shrink a communicator with an asynchronous error, for example after its network
// detected the death of a rank. A revocation clears the error, and ends the operations as
// NCCL_SHRINK_ABORT does.
void Communicator::clear_error() {
  if (library_->reports_failed_work() || revoked_ || !library_->nccl_table().ncclCommRevoke) return;
  if (const ncclResult_t error = async_error(); succeeded(error)) return;
  revoke();
  poll_until(options_.timeout, [this] { return async_error() != ncclInProgress; });
}

void Communicator::begin_grow(Communicator& parent, int nranks,
                              const std::optional<ncclUniqueId>& id) {
  const auto grow = library_->nccl<&NcclTable::ncclCommGrow>();
  const Use comm(parent);
  begin_child(parent, "ncclCommGrow", false, true);
  derive_id(parent, {kGrow, ++parent.grows_});
  if (id) identity_.joined = id_of({*id});
  const Waiting waiting(parent, creator_);
  waiting.check(grow(comm, nranks, id ? &*id : nullptr, -1, created_.get(), child_config()));
}

void Communicator::begin_join(int nranks, const ncclUniqueId& id, int rank) {
  check_pending();
  const DeviceScope scope(*library_, options_.device);
  creator_ = "ncclCommGrow";
  const auto grow = library_->nccl<&NcclTable::ncclCommGrow>();
  rank_ = rank;
  nranks_ = nranks;
  identity_.id = id_of({id});
  check(grow(nullptr, nranks, &id, rank, created_.get(), &options_.config), creator_);
}

Communicator::Options Communicator::inherited() const {
  Options options;
  options.config = options_.config;
  options.strings = options_.strings;
  options.init_timeout = options_.init_timeout;
  options.timeout = options_.timeout;
  options.store = options_.store;
  options.check = options_.check;
  options.on_timeout = policy();
  options.device = device_ < 0 ? options_.device : device_;
  options.inherits = true;
  return options;
}

void Communicator::finish() {
  const std::unique_ptr<Claim> claim = std::move(parent_claim_);
  if (no_color_) {
    state_.store(State::kClosed, std::memory_order_release);
    parent_.reset();
    return;
  }
  State pending = State::kPending;
  if (!state_.compare_exchange_strong(pending, State::kCreating)) {
    free_created();
    throw_not_open();
  }
  const bool created = take_handle();
  if (options_.config.blocking == 0) return;
  if (created) parent_.reset();
  // The parent may be non-blocking, or NCCL_COMM_BLOCKING=0.
  if (!created || read_async_error() == ncclInProgress) wait_ready(std::nullopt);
  read_identity();
}

// Takes over the handle. Returns false if NCCL has not written it yet.
bool Communicator::take_handle() {
  if (state_.load(std::memory_order_acquire) != State::kCreating) return true;
  const ncclComm_t created = std::atomic_ref(*created_).load(std::memory_order_acquire);
  if (!created) return false;
  comm_.store(created, std::memory_order_release);
  begin_deadlines();
  State before = State::kCreating;
  if (state_.compare_exchange_strong(before, blocking() ? State::kOpen : State::kUnready) ||
      before < State::kClosed)
    return true;
  // Another thread has aborted it meanwhile and freed the handle, but did not see it listed.
  OpenCommunicators::remove(*deadlines_);
  if (check() != 0) Observers::stop_operations();
  comm_.store(nullptr);
  return true;
}

void* Communicator::barrier_memory(const std::function<std::shared_ptr<void>()>& allocate) {
  const std::lock_guard lock(mutex_);
  if (!barrier_memory_) barrier_memory_ = allocate();
  return barrier_memory_.get();
}

void Communicator::begin_deadlines() {
  const auto& seconds = options_.timeout;
  deadlines_->set_limit(seconds ? limit_from_seconds(seconds) : default_limit());
  deadlines_->begin(library_, DeviceScope(*library_, options_.device).device());
  publish_identity();
  OpenCommunicators::add(deadlines_, weak_from_this());
  Observers::created(*this);
  if (check() != 0) Observers::observe_operations();
}

void Communicator::read_identity() {
  const Use comm(*this);
  COMM_CHECK(comm, ncclCommUserRank, (comm, &rank_));
  COMM_CHECK(comm, ncclCommCount, (comm, &nranks_));
  COMM_CHECK(comm, ncclCommCuDevice, (comm, &device_));
  publish_identity();
}

ncclResult_t Communicator::async_error() {
  if (parent_ && !parent_->closed()) {
    // The creation of a non-blocking communicator's child is also a call in progress on the parent.
    const ncclResult_t state = parent_->async_error();
    if (state != ncclSuccess) return state;
    parent_.reset();
  }
  if (!take_handle()) return ncclInternalError;
  const ncclResult_t state = read_async_error();
  if (state == ncclSuccess && !blocking()) {
    was_ready_ = true;
    State unready = State::kUnready;
    state_.compare_exchange_strong(unready, idle_state());
  }
  return state;
}

// Called before an NCCL call that is refused while another one is in progress, because the refusal
// would become the communicator's permanent error.
void Communicator::check_ready() {
  if (state_.load() == State::kUnready) check_open();
}

// A non-blocking call may continue after it has returned.
void Communicator::mark_in_progress() {
  State idle = idle_state();
  if (!blocking()) state_.compare_exchange_strong(idle, State::kUnready);
}

// Called before destruction: waits for a call in progress, within the time limit. Returns false if
// the call, or the creation, is still in progress. The communicator can then only be aborted,
// because ncclCommDestroy would leave this thread in a group.
bool Communicator::settle() {
  if (async_error() != ncclInProgress) return true;
  if (!blocking() && !was_ready_) return false;
  std::optional<double> seconds;  // set if the communicator's own limit no longer applies
  if (revoked_ || expired()) seconds = kExpirySeconds;
  const bool late = expired();
  const Deadlines::Call call(*deadlines_, "ncclCommDestroy");
  return poll_until(seconds,
                    [&] { return async_error() != ncclInProgress || (!late && expired()); }) &&
         (late || !expired());
}

ncclResult_t Communicator::read_async_error() {
  const Use comm(*this);
  ncclResult_t state = ncclSuccess;
  COMM_CHECK(comm, ncclCommGetAsyncError, (comm, &state));
  if (!succeeded(state)) [[unlikely]]
    record_failure(state, failure_text(*library_, state, "ncclCommGetAsyncError", comm, rank_));
  return state;
}

bool Communicator::failed() noexcept {
  ask_owner();
  const ncclComm_t comm = comm_.load();
  if (closed() || !comm) return closed();
  ncclResult_t state = ncclSuccess;
  NCCL_CALL_NOTHROW(*library_, ncclCommGetAsyncError, (comm, &state));
  return !succeeded(state);
}

bool Communicator::ready() {
  const ncclResult_t state = async_error();
  check(state, "ncclCommGetAsyncError");
  return state == ncclSuccess;
}

void Communicator::wait_ready(std::optional<double> seconds) {
  if (!poll_until(seconds, [this] { return ready(); }))
    throw_late(*seconds, "ncclCommGetAsyncError");
}

std::vector<std::shared_ptr<Communicator>> Communicator::init_all(
    const std::shared_ptr<Library>& library, const std::vector<int>& devices, Factory make) {
  RawGroup::check_none();
  default_limit();  // both throw if the environment is invalid
  default_policy();
  const DeviceScope scope(*library, devices.empty() ? -1 : devices.front());
  std::vector<ncclComm_t> comms(devices.size());
  NCCL_CHECK(*library, nullptr, -1, ncclCommInitAll,
             (comms.data(), static_cast<int>(devices.size()), devices.data()));
  static std::atomic<std::uint64_t> count = 0;  // of calls of this process
  const auto now = static_cast<std::uint64_t>(precise_time());
  const std::uint64_t id =
      FlightIdentity::mix(FlightIdentity::mix(now, static_cast<std::uint64_t>(getpid())), ++count);
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    Options options;
    options.device = devices[i];
    const auto& rank = ranks.emplace_back(make(library, options));
    rank->creator_ = "ncclCommInitAll";
    rank->identity_.id = id;
    *rank->created_ = comms[i];
    rank->finish();
  }
  return ranks;
}

std::uint64_t Communicator::window_fingerprint() const {
  const std::lock_guard lock(mutex_);
  std::set<std::uint64_t> numbers;
  for (const auto& [address, memory] : window_memory_)
    if (memory.number != 0) numbers.insert(memory.number);
  return std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0}, &FlightIdentity::mix);
}

const Window& Communicator::window_at(const void* address) const {
  const std::lock_guard lock(mutex_);
  const auto found = window_memory_.find(static_cast<const char*>(address));
  if (found == window_memory_.end() || !found->second.window)
    throw std::invalid_argument("window: no window of this communicator is open at this address");
  return *found->second.window;
}

bool Communicator::in_symmetric_window(const void* data, std::size_t nbytes) const {
  const auto* begin = static_cast<const char*>(data);
  const std::lock_guard lock(mutex_);
  return std::any_of(window_memory_.begin(), window_memory_.end(), [&](const auto& entry) {
    const auto& [address, memory] = entry;
    const auto offset = static_cast<std::size_t>(begin - address);
    return memory.symmetric && begin >= address && offset <= memory.nbytes &&
           nbytes <= memory.nbytes - offset;
  });
}

ncclUniqueId Communicator::get_unique_id() {
  const auto get = library_->nccl<&NcclTable::ncclCommGetUniqueId>();
  if (std::getenv("NCCL_COMM_ID"))
    throw std::invalid_argument(
        "NCCL_COMM_ID is set in the environment, so NCCL cannot generate an id for new ranks; "
        "unset it");
  const Claim claim(shared_from_this());
  const Use comm(*this);
  ncclUniqueId id;
  check(get(comm, &id), "ncclCommGetUniqueId");
  root()->growing_ = true;
  return id;
}

void Communicator::begin_suspend() {
  check_owned("suspend");
  check_ready();
  const auto suspend = library_->nccl<&NcclTable::ncclCommSuspend>();
  const Claim claim(shared_from_this());
  check_shares_nothing();
  const Use comm(*this);
  const Waiting waiting(*this, "ncclCommSuspend");
  waiting.check(suspend(comm, NCCL_SUSPEND_MEM));
  changed_ = State::kSuspended;
}

void Communicator::begin_resume() {
  check_owned("resume");
  check_ready();
  const Use comm(*this);
  const Waiting waiting(*this, "ncclCommResume");
  waiting.check(library_->nccl<&NcclTable::ncclCommResume>()(comm));
  changed_ = State::kOpen;
}

void Communicator::finish_change() {
  const auto change = [changed = changed_](Communicator& one) {
    State before = changed == State::kOpen ? State::kSuspended : State::kOpen;
    one.state_.compare_exchange_strong(before, changed);
    if (changed == State::kOpen) one.mark_in_progress();
  };
  change(*this);
  for (const auto& borrower : borrowers()) change(*borrower);
}

// NCCL cannot suspend memory that communicators share.
void Communicator::check_shares_nothing() const {
  if (shares())
    throw std::invalid_argument(
        "communicator: it shares the memory of its parent (split_share, shrink_share)");
  if (!open_shared_children().empty())
    throw std::invalid_argument(
        "communicator: a child shares its memory (split_share, shrink_share); close it first");
}

std::uint64_t Communicator::memory_stat(ncclCommMemStat_t stat) {
  const Use comm(*this);
  std::uint64_t value = 0;
  COMM_CHECK(comm, ncclCommMemStats, (comm, stat, &value));
  return value;
}

void RawGroup::check_none() {
  if (depth_ != 0)
    throw std::invalid_argument(
        "communicator: a group of raw.ncclGroupStart() is open on this thread; use nccl.group()");
}

GroupScope::GroupScope(Library& library) : library_(library) {
  NCCL_CHECK(library, nullptr, -1, ncclGroupStart, ());
}

GroupScope::~GroupScope() {
  if (open_) NCCL_CALL_NOTHROW(library_, ncclGroupEnd, ());
}

bool GroupScope::end() {
  open_ = false;
  const ncclResult_t result = library_.nccl<&NcclTable::ncclGroupEnd>()();
  if (!succeeded(result))
    throw_nccl(library_, result, "ncclGroupEnd", nullptr, -1, __FILE__, __LINE__);
  return result == ncclInProgress;
}

std::optional<double> GroupScope::end_simulated() {
  open_ = false;
  ncclSimInfo_t info = library_.fit(ncclSimInfo_t());
  NCCL_CHECK(library_, nullptr, -1, ncclGroupSimulateEnd, (&info));
  if (info.estimatedTime == kUndefFloat) return std::nullopt;
  return static_cast<double>(info.estimatedTime) * 1e-6;
}

void Communicator::create(const std::vector<std::shared_ptr<Communicator>>& communicators,
                          const std::function<void()>& steps) {
  RawGroup::check_none();
  const Communicator* first = nullptr;  // the one with the shortest init_timeout
  for (const auto& one : communicators) {
    const auto& timeout = one->options_.init_timeout;
    if (timeout && (!first || timeout < first->options_.init_timeout)) first = one.get();
  }
  if (!first) return steps();
  const double seconds = *first->options_.init_timeout;
  const auto limited = [communicators, seconds, steps] {
    const LibraryLimit limit(communicators, seconds);
    steps();
  };
  const auto limits_itself = [](const auto& one) { return init_timeout_of(one->library()); };
  if (std::ranges::all_of(communicators, limits_itself)) return limited();
  for (const auto& one : communicators)  // the thread of run_within() has no current device
    one->options_.device = DeviceScope(one->library(), one->options_.device).device();
  const auto free = [communicators] {
    for (const auto& one : communicators) {
      State abandoned = State::kAbandoned;
      one->state_.compare_exchange_strong(abandoned, State::kCreating);
      one->discard();
    }
  };
  if (run_within(seconds, limited, free)) return;
  for (const auto& one : communicators) one->abandon();
  first->throw_late(seconds, first->creator_);
}

void Communicator::abandon() {
  {
    // The NCCL call that continues may make the parent expire. Its close() need not report that.
    const std::lock_guard lock(mutex_);
    if (const auto parent = created_from_.lock()) parent->error_thrown_ = true;
  }
  State state = state_.load();
  while (state < State::kClosed && !state_.compare_exchange_weak(state, State::kAbandoned)) {
  }
}

// The identity of a communicator in the flight record. Its id is derived from values that all ranks
// know: the unique id, or the parent's id and the call that created it from the parent.

void Communicator::derive_id(const Communicator& parent, std::initializer_list<std::uint64_t> words,
                             std::vector<int> ranks) {
  identity_.parent = identity_.id = parent.identity_.id;
  const auto mix = [&](auto word) {
    identity_.id = FlightIdentity::mix(identity_.id, static_cast<std::uint64_t>(word));
  };
  std::ranges::for_each(words, mix);
  std::ranges::sort(ranks);
  std::ranges::for_each(ranks, mix);
}

// Numbered so that the id differs from those of the open children. Attempts are not counted,
// because their number may differ between the ranks.
void Communicator::identify_shrunk(Communicator& parent, const std::vector<int>& excluded) {
  std::vector<std::uint64_t> open;
  std::erase_if(parent.shrunk_, [&](const auto& one) {
    const auto child = one.lock();
    if (!child || child->closed()) return true;
    open.push_back(child->identity_.id);
    return false;
  });
  std::uint64_t number = 0;
  do derive_id(parent, {kShrink, number++}, excluded);
  while (std::ranges::find(open, identity_.id) != open.end());
  parent.shrunk_.push_back(weak_from_this());
}

void Communicator::publish_identity() {
  const std::lock_guard lock(mutex_);
  identity_.creator = creator_;
  identity_.rank = rank_;
  identity_.nranks = nranks_;
  identity_.device = device_;
  deadlines_->recorder().identify(identity_);
}

void Communicator::set_name(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    identity_.name = name;
  }
  publish_identity();
}

}  // namespace pynccl
