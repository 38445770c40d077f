// Communicator: one rank of an NCCL communicator. It owns or borrows the ncclComm_t, issues
// operations on it and closes it. The bindings check the arguments of an operation, this class
// checks the state of the communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ranges>
#include <source_location>
#include <thread>
#include <utility>
#include <vector>

#include "comm/deadlines.h"
#include "comm/observer.h"
#include "comm/operation.h"
#include "nccl/barrier.h"
#include "nccl/library.h"

namespace pynccl {

class Communicator;
class Window;

// How a process reacts to an expired time limit, besides the exceptions of waits.
struct TimeoutPolicy {
  // Called by the monitor after the communicator was revoked; must not block.
  using Callback = std::function<void(const std::shared_ptr<Communicator>&, const NcclFailure&)>;

  bool abort = false;              // abort the process with SIGABRT
  Callback callback;               // may be empty
  std::shared_ptr<void> function;  // the user function that callback calls
};

// The policy of communicators that set none: PYNCCL_ON_TIMEOUT. Throws std::invalid_argument.
TimeoutPolicy default_policy();

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Options {
    ncclConfig_t config;                      // of a child that inherits: the parent's
    std::shared_ptr<const void> strings;      // owns those of config
    std::optional<double> init_timeout;       // seconds; none: the library's own limit
    std::optional<double> timeout;            // seconds per operation; none: default_limit()
    std::optional<TimeoutPolicy> on_timeout;  // none: default_policy()
    std::shared_ptr<void> store;              // owned by the bindings; children inherit it
    std::optional<std::uint64_t> check;       // compare every N-th collective
    int device = -1;                          // negative: the thread's current device
    bool inherits = false;                    // a child: NCCL copies the parent's configuration
  };

  // A pending communicator without an ncclComm_t, which begin_...() and finish() create.
  Communicator(std::shared_ptr<Library> library, const Options& options);
  ~Communicator();  // aborts unless it was closed; never throws

  // The options of a child that inherits this communicator's configuration.
  Options inherited() const;

  // Creation takes two steps, so that a group can create several communicators on one thread:
  // begin_...() calls NCCL, and finish() takes over the handle. Unless the user asked for a
  // non-blocking communicator, finish() also waits until it is ready and reads rank and size.
  // More than one id selects ncclCommInitRankScalable.
  void begin_init(int nranks, const std::vector<ncclUniqueId>& ids, int rank);
  void begin_split(Communicator& parent, int color, int key);
  void begin_shrink(Communicator& parent, std::vector<int> excluded, int flags);
  void begin_grow(Communicator& parent, int nranks, const std::optional<ncclUniqueId>& id);
  void begin_join(int nranks, const ncclUniqueId& id, int rank);
  void finish();

  // The owner of a borrowed handle, which frees it.
  struct Owner {
    std::shared_ptr<Communicator> communicator;  // null: a foreign owner
    // For a foreign owner that supports it: returns the handle, or null once it is closed. Callable
    // from any thread.
    std::function<ncclComm_t()> ask;
    std::shared_ptr<void> object;  // owned by the bindings; kept alive while the handle is borrowed
  };
  // Uses a handle without owning it: closing this communicator only forgets the handle, and closing
  // the owner closes this communicator. Throws std::invalid_argument if the owner is closed.
  void borrow(ncclComm_t comm, Owner owner);
  bool borrowed() const { return borrowed_; }
  // Throws std::invalid_argument if the handle is borrowed: only the owner may make this call.
  void check_owned(const char* call) const;
  // The open communicator that owns a handle; null if there is none.
  static std::shared_ptr<Communicator> find(const Library& library, ncclComm_t comm);
  // If borrowed: updates the state in case the owner has closed the handle.
  void ask_owner() noexcept {
    if (state_.load() == State::kLent) still_lent();
  }
  // Counts registered buffers. A borrowed communicator with registrations cannot be closed.
  void add_registrations(int count) { registrations_ += count; }

  // Calls steps, which performs both steps for these communicators. Throws ncclTimeout after the
  // shortest init_timeout, if any is set. A library with hostSetInitTimeout ends its call then.
  // NCCL's call cannot be ended: it continues on a separate thread, which aborts the communicators
  // afterwards.
  static void create(const std::vector<std::shared_ptr<Communicator>>& communicators,
                     const std::function<void()>& steps);

  static void observe();  // adds the observer of failed work; see watch/observers.h

  // All ranks of one communicator in this process (ncclCommInitAll). The factory constructs each.
  using Factory = std::shared_ptr<Communicator> (*)(std::shared_ptr<Library>, const Options&);
  static std::vector<std::shared_ptr<Communicator>> init_all(
      const std::shared_ptr<Library>& library, const std::vector<int>& devices, Factory make);

  void issue(const Operation& operation);
  // The same for a kind known at compile time, inlined to the call of its function.
  void issue(OperationKind kind, const Operation& operation);
  // In an open group, between Deadlines::begin_group() and end_group().
  void issue_in_group(const Operation& operation);
  // Waits until NCCL has issued an operation or a group, within the time limit of the operations.
  // On a non-blocking communicator, the call returns earlier. NCCL refuses a further call until
  // then, and the refusal becomes a permanent error.
  void wait_issued(const char* function);
  // issue_in_group() for a group that is only simulated: nothing is recorded.
  void simulate_in_group(const Operation& operation);
  // Checks that the library supports an operation with a configuration. Throws MissingFunction, or
  // std::invalid_argument for a field that the library is too old for.
  void check_configured(const Operation& operation) const;

  void finalize();
  // Finalizes and destroys the communicator. Closing twice is allowed. A communicator with an
  // asynchronous error is aborted, and the error is thrown unless an operation already threw one.
  void close();
  // Callable from any thread. Does nothing if the communicator is closed. Aborts the children that
  // share its resources as well. Calls of other threads return first; from NCCL 2.28.7 on, a
  // revocation ends them. NCCL may wait for graphs and streams without limit, so after some seconds
  // the abort continues in the background.
  void abort();
  // abort() for an unreferenced communicator. One that shares resources with its parent or with
  // children is destroyed in the background instead.
  void discard() noexcept;

  // The scope of a call that creates a communicator from this one or changes its windows. NCCL
  // allows one such call at a time: throws std::invalid_argument if another thread is in one.
  class Claim {
   public:
    explicit Claim(const std::shared_ptr<Communicator>& communicator);
    ~Claim();
    Claim(Claim&&) = default;
    Claim& operator=(Claim&&) = delete;

   private:
    std::shared_ptr<Communicator> communicator_;
  };

  // The scope of an NCCL call that uses the communicator. An abort on another thread waits for its
  // end. Throws std::invalid_argument unless the communicator is open or suspended. A group that
  // uses several communicators calls begin_use() and end_use() instead.
  class Use {
   public:
    explicit Use(Communicator& communicator);
    ~Use() { communicator_.end_use(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    operator ncclComm_t() const { return communicator_.comm_.load(std::memory_order_relaxed); }
    Communicator& communicator() const { return communicator_; }

   private:
    Communicator& communicator_;
  };
  void begin_use() { uses_.fetch_add(1); }
  void end_use() { uses_.fetch_sub(1); }
  // Throws NcclFailure for an NCCL result, annotated with the state of the communicator, such as an
  // abort by another thread. hint: appended to NCCL's text for ncclInvalidArgument.
  [[noreturn]] void throw_failed(ncclResult_t result, const char* function, const char* file,
                                 int line, const char* hint = "");
  // Rethrows the failure of a group, annotated by each of its communicators.
  template <std::ranges::input_range Communicators>
  [[noreturn]] static void rethrow_failed(const NcclFailure& failure,
                                          const Communicators& communicators) {
    NcclFailure annotated = failure;
    for (Communicator* communicator : communicators) annotated = communicator->annotated(annotated);
    throw annotated;
  }

  // The deadlines of its operations and calls, with the flight recorder.
  Deadlines& deadlines() { return *deadlines_; }
  const Deadlines& deadlines() const { return *deadlines_; }
  // Called by the monitor for a late operation or call. Revokes the communicator, or aborts it if
  // the library cannot revoke. All waits and all later operations throw ncclTimeout. answer and
  // missing: the result of an Inquiry, with the missing ranks if known.
  void expire(const Deadlines::Late& late, const std::string& answer,
              const std::optional<MissingRanks>& missing);
  // Requests an Inquiry into the missing ranks before the communicator expires. ras: whether NCCL
  // has the RAS service.
  void inquire(bool ras) {
    asks_ras_.store(ras, std::memory_order_relaxed);
    inquires_.store(true, std::memory_order_release);
  }
  bool inquires() const { return inquires_.load(std::memory_order_acquire); }
  bool asks_ras() const { return asks_ras_.load(std::memory_order_relaxed); }
  bool expired() const { return expired_.load(std::memory_order_acquire); }
  void check_state();  // throws the failure or expiry, if any; callable from any thread
  // The exception of an expired communicator. nccl: the text of NCCL's failure, or empty.
  NcclFailure expiry(const std::string& function, const std::string& nccl = "") const;
  // Records NCCL's asynchronous error, if any, as the failure of the communicator.
  void record_async_failure() noexcept;
  void set_name(const std::string& name);  // its name in the flight record
  void set_policy(TimeoutPolicy policy);
  TimeoutPolicy policy() const;

  // The steps of recover().
  // Revokes the communicator if the library can, which ends the waits of other ranks for this one.
  // Its time limit no longer applies.
  void begin_recovery();
  // The lost ranks, as agreed by the surviving ones (hostCommAgree). Waits for ranks that are not
  // known to be lost. None if the library lacks the function.
  std::optional<std::vector<int>> agree(double seconds, std::vector<int> lost);
  // Creates the communicator of the surviving ranks from an id, or by a shrink or a split.
  void begin_recovered(Communicator& parent, const std::vector<int>& lost,
                       const std::optional<ncclUniqueId>& id);
  void set_init_timeout(std::optional<double> seconds) { options_.init_timeout = seconds; }
  void set_timeout(std::optional<double> seconds);  // of later operations

  ncclUniqueId get_unique_id();  // for begin_grow
  void revoke();                 // callable from any thread
  // In a group, NCCL suspends and resumes at the end of the group. finish_change() comes after it.
  void begin_suspend();
  void begin_resume();
  void finish_change();
  std::uint64_t memory_stat(ncclCommMemStat_t stat);

  // The state of NCCL's background work (ncclCommGetAsyncError). async_error() also marks a
  // communicator as ready once NCCL has finished. wait_ready() throws ncclTimeout after the given
  // seconds, and leaves the communicator as it is.
  ncclResult_t async_error();
  bool failed() noexcept;  // whether it is closed or NCCL reports an asynchronous error
  bool ready();
  void wait_ready(std::optional<double> seconds);

  Library& library() const { return *library_; }
  const std::shared_ptr<Library>& shared_library() const { return library_; }
  const std::shared_ptr<void>& store() const { return options_.store; }
  std::uint64_t check() const { return options_.check.value_or(0); }  // 0: nothing is compared
  // Throws std::invalid_argument unless it is open, and ncclInvalidUsage while it is suspended.
  // NCCL does not check for suspension, and would run on memory that it has released.
  [[gnu::always_inline]] ncclComm_t handle() {
    if (state_.load(std::memory_order_acquire) != State::kOpen) [[unlikely]]
      check_open();
    return comm_.load(std::memory_order_relaxed);
  }
  ncclComm_t handle_or_null() {
    ask_owner();
    return comm_.load(std::memory_order_acquire);
  }
  ncclWindow_t* new_window();  // a slot that NCCL writes the handle to
  // The memory of windows. NCCL identifies a window by its address, so add_memory() returns false
  // for an address that is in use.
  struct WindowMemory {
    std::size_t nbytes;
    bool symmetric;
    std::uint64_t number = 0;        // in the order of registration; equal on all ranks
    const Window* window = nullptr;  // set while it is open and not deleted
  };
  bool add_memory(void* address, WindowMemory memory);
  // Assigns the number and returns it. window: null for the memory of a device communicator.
  std::uint64_t open_memory(void* address, const Window* window);
  void forget_window(void* address);  // the memory stays registered
  void remove_memory(void* address);
  // The open window at this local address. Throws std::invalid_argument if there is none.
  const Window& window_at(const void* address) const;
  bool in_symmetric_window(const void* data, std::size_t nbytes) const;
  std::uint64_t window_fingerprint() const;  // equal on ranks with the same open windows
  bool set_up_one_sided() { return !std::exchange(one_sided_, true); }  // true once
  void keep_until_closed(std::shared_ptr<void> memory);
  // Device memory for barriers, allocated by the first call.
  void* barrier_memory(const std::function<std::shared_ptr<void>()>& allocate);
  bool revoked() const { return revoked_.load(std::memory_order_relaxed); }
  bool blocking() const { return options_.config.blocking != 0; }
  bool closed() const { return state_.load(std::memory_order_acquire) >= State::kClosed; }
  bool pending() const {  // it has no ncclComm_t yet
    const State state = state_.load(std::memory_order_acquire);
    return state == State::kPending || state == State::kCreating;
  }
  // Read from NCCL once. Unavailable until a non-blocking communicator is ready.
  int rank() { return rank_ < 0 ? identified().rank_ : rank_; }
  int nranks() { return nranks_ < 1 ? identified().nranks_ : nranks_; }
  int device() { return identified().device_; }
  std::shared_ptr<Deadlines> shared_deadlines() const { return deadlines_; }
  std::atomic<std::uint64_t>& trace_number() { return trace_number_; }  // used by watch/trace
  int known_rank() const { return rank_; }                              // -1: not read yet

 private:
  // kCreating: NCCL was called and has not written the handle yet.
  // kExpired, kShrunk: open, but operations are refused. kShrunk follows shrink(abort).
  // kLent: open, but the foreign owner must be asked before each use.
  // kUnready: open, but a non-blocking call may be in progress, so NCCL must be asked.
  // kAbandoned: init_timeout passed during the NCCL call.
  enum class State {
    kPending,
    kCreating,
    kOpen,
    kExpired,
    kShrunk,
    kSuspended,
    kLent,
    kUnready,
    kClosed,
    kAbandoned
  };

  // Records a failure and adds the state of the communicator to its text.
  NcclFailure annotated(const NcclFailure& failure);

  // A Use for issue() that costs two stores, because one thread at a time issues operations.
  class Issuing {
   public:
    [[gnu::always_inline]] explicit Issuing(Communicator& communicator)
        : communicator_(communicator) {
      communicator_.issuing_.store(true, std::memory_order_relaxed);
      light_barrier();  // abort() stores the state and reads issuing_
    }
    [[gnu::always_inline]] ~Issuing() {
      communicator_.issuing_.store(false, std::memory_order_release);
    }

   private:
    Communicator& communicator_;
  };

  [[noreturn]] void throw_not_open() const;
  void check_open();
  bool still_lent() noexcept;
  void check_ready();
  void mark_in_progress();
  // The state when no call is in progress.
  State idle_state() const { return shrunk_by_abort_ ? State::kShrunk : State::kOpen; }
  bool settle();
  void forget() noexcept;
  void forget_unless_registered();
  Owner owner() const;
  std::shared_ptr<Communicator> root();
  std::vector<std::shared_ptr<Communicator>> borrowers() const;
  // Calls visit for all communicators that use the handle: its owner, or this one if the owner is
  // foreign, and the borrowers.
  template <class Visit>
  void visit_users(Visit&& visit) {
    std::shared_ptr<Communicator> owner;
    {
      const std::lock_guard lock(mutex_);
      if (owner_) owner = owner_->communicator;
    }
    Communicator& lender = owner ? *owner : *this;
    visit(lender);
    for (const auto& borrower : lender.borrowers()) visit(*borrower);
  }
  // The unfinished operations on the handle, which a revocation or an abort would end.
  std::vector<Deadlines::Unfinished> unfinished();
  void notify_observers(bool aborted) const;
  void mark_revoked(bool revoked = true);
  void mark_shrunk();
  void clear_error();
  void check(ncclResult_t result, const char* function, const char* hint = "",
             std::source_location where = std::source_location::current()) {
    if (!succeeded(result)) [[unlikely]]
      throw_failed(result, function, where.file_name(), static_cast<int>(where.line()), hint);
  }
  // check() for an operation.
  void check_operation(ncclResult_t result, const char* function, const char* hint = "",
                       std::source_location where = std::source_location::current()) {
    if (result != ncclSuccess) [[unlikely]]
      check_unfinished(result, function, hint, where);
  }
  void check_unfinished(ncclResult_t result, const char* function, const char* hint,
                        std::source_location where);
  // The scope of an NCCL call that waits for the other ranks. On a communicator that had already
  // expired, an error of the call is not reported as the expiry: shrink() serves that case.
  class Waiting {
   public:
    Waiting(Communicator& communicator, const char* function)
        : communicator_(communicator),
          function_(function),
          expired_(communicator.expired()),
          call_(communicator.deadlines(), function) {}
    void check(ncclResult_t result,
               std::source_location where = std::source_location::current()) const {
      const int line = static_cast<int>(where.line());
      if (succeeded(result)) return;
      if (!expired_) communicator_.throw_failed(result, function_, where.file_name(), line);
      throw_nccl(communicator_.library(), result, function_, communicator_.comm_.load(),
                 communicator_.known_rank(), where.file_name(), line);
    }

   private:
    Communicator& communicator_;
    const char* function_;
    const bool expired_;
    const Deadlines::Call call_;
  };

  [[noreturn]] void throw_late(double seconds, const char* function) const;
  void begin_child(Communicator& parent, const char* creator, bool shares, bool grows = false);
  // Calls NCCL with the parent's handle. If the parent was revoked, nothing can end the call, so it
  // runs on a separate thread with a time limit. call must own all that it captures.
  ncclResult_t call_parent(Communicator& parent,
                           const std::function<ncclResult_t(ncclComm_t)>& call);
  bool shares() const;
  std::vector<std::shared_ptr<Communicator>> open_shared_children() const;
  void check_shares_nothing() const;
  void abort_alone();
  ncclComm_t take_to_free();
  void check_pending() const {  // another thread may have aborted it
    if (closed()) throw_not_open();
  }
  void free_created();
  bool free_handle(bool aborts, double seconds);
  bool call_within(double seconds, const std::function<void(Communicator&)>& function);
  bool finalize_within(double seconds, const char* function);
  bool revoke_within(double seconds);
  void wait_for_expiry() const;
  ncclConfig_t* child_config() { return options_.inherits ? nullptr : &options_.config; }
  bool take_handle();
  Communicator& identified() {
    if (device_ < 0 && !closed()) [[unlikely]]
      read_identity();
    return *this;
  }
  void begin_deadlines();
  // Sets the identity of a communicator created from a parent. The first word is a Creation.
  enum Creation : std::uint64_t { kSplit = 1, kShrink, kGrow, kRecover, kBorrow };
  void identify_shrunk(Communicator& parent, const std::vector<int>& excluded);
  void derive_id(const Communicator& parent, std::initializer_list<std::uint64_t> words,
                 std::vector<int> ranks = {});
  void publish_identity();
  struct Expiry {
    std::string text;
    std::optional<MissingRanks> missing;  // none: unknown
  };
  class WorkFailures;
  std::optional<NcclFailure> record_expiry(const Deadlines::Late& late, Expiry expiry);
  void record_failure(ncclResult_t result, const std::string& text) noexcept;
  void fail_queued_work(ncclResult_t result, const char* function, const std::string& reason,
                        double seconds = 0.05);
  void read_identity();
  ncclResult_t read_async_error();  // callable from any thread once there is a handle
  void abandon();
  bool in_use() const;
  bool captured() const;
  static void keep_forever(std::vector<std::shared_ptr<void>> memory);
  void end_calls();
  void end_expired(const std::optional<Deadlines::Entry>& call);
  void end_interrupted() noexcept;
  [[gnu::noinline]] void issue_observed(OperationKind kind, const Operation& operation);
  [[gnu::noinline]] void issue_in_group_observed(const Operation& operation);
  void call_nccl(OperationKind kind, ncclComm_t comm, const Operation& operation);
  void issue_configured(const Operation& operation);
  // Defined in window.cpp.
  void issue_one_sided(OperationKind kind, ncclComm_t comm, const Operation& operation);
  void issue_as_messages(const Operation& operation, int nranks);

  // The members that an operation reads come first.
  std::shared_ptr<Library> library_;
  std::atomic<State> state_ = State::kPending;
  std::atomic<ncclComm_t> comm_ = nullptr;
  std::atomic<bool> issuing_ = false;
  int device_ = -1;
  std::atomic<std::uint64_t> trace_number_ = 0;
  const std::shared_ptr<Deadlines> deadlines_ = std::make_shared<Deadlines>();
  Options options_;  // on_timeout is always set, and guarded by mutex_
  std::atomic<int> uses_ = 0;
  std::atomic<bool> expired_ = false;
  std::atomic<bool> expiry_ended_ = false;  // the expiry has revoked or aborted it
  std::atomic<bool> inquires_ = false;
  std::atomic<bool> asks_ras_ = false;
  // NCCL writes the handle here. For a child of a non-blocking parent, a thread of NCCL does so
  // later, so the parent shares ownership of this memory.
  std::shared_ptr<ncclComm_t> created_ = std::make_shared<ncclComm_t>(nullptr);
  std::vector<std::shared_ptr<ncclComm_t>> children_;
  std::shared_ptr<Communicator> parent_;  // until it is ready again
  std::unique_ptr<Claim> parent_claim_;   // until finish() returns
  bool borrowed_ = false;
  std::atomic<int> registrations_ = 0;
  bool no_color_ = false;  // split() with NCCL_SPLIT_NOCOLOR: no communicator
  // With splitShare or shrinkShare in the parent's configuration, NCCL shares the parent's memory
  // and abort flag with its children.
  std::weak_ptr<Communicator> shared_parent_;
  std::vector<std::weak_ptr<Communicator>> shrunk_;  // the children of shrink()
  std::atomic<bool> growing_ = false;                // between get_unique_id() and begin_grow()
  State changed_ = State::kOpen;                     // the state that finish_change() sets
  std::atomic<bool> revoked_ = false;
  std::atomic<bool> shrunk_by_abort_ = false;
  std::atomic<bool> error_thrown_ = false;  // an operation threw NCCL's error
  std::atomic<bool> failure_recorded_ = false, failure_dumped_ = false;
  std::uint64_t splits_ = 0, grows_ = 0, borrows_ = 0;  // the number of calls
  std::atomic<bool> finalized_ = false;                 // ncclCommFinalize was called
  std::atomic<bool> was_ready_ = false;                 // a non-blocking creation has completed
  mutable std::mutex mutex_;                            // guards the following, up to kept_
  std::weak_ptr<Communicator> created_from_;
  std::vector<std::weak_ptr<Communicator>> shared_children_;
  std::shared_ptr<const Owner> owner_;                  // of a borrowed handle
  std::vector<std::weak_ptr<Communicator>> borrowers_;  // of this communicator's handle
  Expiry expiry_;                                       // set before expired_
  FlightIdentity identity_;
  std::thread::id claimed_by_;
  int claims_ = 0;
  std::deque<ncclWindow_t> windows_;
  std::map<const char*, WindowMemory> window_memory_;  // by address
  std::uint64_t registered_windows_ = 0;
  std::vector<std::shared_ptr<void>> kept_;  // memory of windows that were not closed
  std::shared_ptr<void> barrier_memory_;
  bool one_sided_ = false;
  int rank_ = -1;
  int nranks_ = 0;
  std::atomic<const char*> creator_ = "ncclCommInitRankConfig";
};

// NCCL_CHECK for a call within a Communicator::Use.
#define COMM_CHECK(use, function, args)                                             \
  do {                                                                              \
    Communicator& used_ = (use).communicator();                                     \
    const ncclResult_t result_ = used_.library().nccl<&NcclTable::function>() args; \
    if (!succeeded(result_)) [[unlikely]]                                           \
      used_.throw_failed(result_, #function, __FILE__, __LINE__);                   \
  } while (false)

// Counts the open groups of raw.ncclGroupStart() on this thread. NCCL creates objects only at the
// end of a group, so pynccl's objects cannot be created inside one.
class RawGroup {
 public:
  static void start() { ++depth_; }
  static void end() {
    if (depth_ != 0) --depth_;
  }
  static void check_none();  // throws std::invalid_argument inside one

 private:
  inline static thread_local int depth_ = 0;
};

// A group of NCCL calls on one library (ncclGroupStart, ncclGroupEnd), from construction to end().
// The destructor ends a group that an exception left open, and ignores the result.
class GroupScope {
 public:
  explicit GroupScope(Library& library);
  ~GroupScope();
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;
  bool end();  // returns whether it is still in progress: see Communicator::wait_issued()
  // Ends the group without running it (ncclGroupSimulateEnd). Returns the estimated seconds, or
  // none if the library has no estimate.
  std::optional<double> end_simulated();

 private:
  Library& library_;
  bool open_ = true;
};

// Creates windows or device communicators of one library, several if one thread has several ranks:
// begin(library) calls NCCL, which waits for the other ranks, and finish() follows. function: the
// name in deadlines.
template <class Object, class Begin, class Finish>
void create_together(const std::vector<Object*>& objects, const char* function, Begin&& begin,
                     Finish&& finish) {
  if (objects.empty()) return;
  RawGroup::check_none();
  std::vector<Communicator::Claim> claims;
  std::list<Deadlines::Call> calls;
  for (const Object* one : objects) {
    claims.emplace_back(one->communicator());
    calls.emplace_back(one->communicator()->deadlines(), function);
    one->communicator()->handle();  // throws if it is suspended, which it is on all ranks then
  }
  Library& library = objects.front()->communicator()->library();
  const RelaxedMode relaxed(library);  // the calling thread may be capturing
  try {
    begin(library);
  } catch (const NcclFailure& failure) {
    Communicator::rethrow_failed(failure, objects | std::views::transform([](const Object* one) {
                                            return one->communicator().get();
                                          }));
  }
  finish();
}

[[gnu::always_inline]] inline void Communicator::issue(OperationKind kind, const Operation& o) {
  if (Observers::operations()) [[unlikely]]
    return issue_observed(kind, o);
  const Issuing issuing(*this);
  const ncclComm_t comm = handle();
  Deadlines& deadlines = *deadlines_;
  const std::int64_t now = coarse_time();
  const FlightRecorder::Call call(deadlines.recorder(), kind, o, now, deadlines.limit());
  call_nccl(kind, comm, o);
  deadlines.enqueued(o.stream, now);
}

[[gnu::always_inline]] inline void Communicator::call_nccl(OperationKind kind, ncclComm_t comm,
                                                           const Operation& o) {
  const NcclTable& nccl = library_->nccl_table();
#define PRESENT(function, ...)                                            \
  check_operation(nccl.function(__VA_ARGS__, comm, o.stream), #function); \
  return
  // A function of every library from 2.18 on, or one that sends and receives replace.
  switch (kind) {
    case OperationKind::kAllReduce:
      PRESENT(ncclAllReduce, o.sendbuff, o.recvbuff, o.count, o.dtype, o.op);
    case OperationKind::kBroadcast:
      PRESENT(ncclBroadcast, o.sendbuff, o.recvbuff, o.count, o.dtype, o.root_or_peer);
    case OperationKind::kReduce:
      PRESENT(ncclReduce, o.sendbuff, o.recvbuff, o.count, o.dtype, o.op, o.root_or_peer);
    case OperationKind::kAllGather:
      PRESENT(ncclAllGather, o.sendbuff, o.recvbuff, o.count, o.dtype);
    case OperationKind::kReduceScatter:
      PRESENT(ncclReduceScatter, o.sendbuff, o.recvbuff, o.count, o.dtype, o.op);
    case OperationKind::kAllToAll:
      if (!nccl.ncclAlltoAll) return issue_as_messages(o, nranks());
      PRESENT(ncclAlltoAll, o.sendbuff, o.recvbuff, o.count, o.dtype);
    case OperationKind::kGather:
      if (!nccl.ncclGather) return issue_as_messages(o, nranks());
      PRESENT(ncclGather, o.sendbuff, o.recvbuff, o.count, o.dtype, o.root_or_peer);
    case OperationKind::kScatter:
      if (!nccl.ncclScatter) return issue_as_messages(o, nranks());
      PRESENT(ncclScatter, o.sendbuff, o.recvbuff, o.count, o.dtype, o.root_or_peer);
    case OperationKind::kSend:
      PRESENT(ncclSend, o.sendbuff, o.count, o.dtype, o.root_or_peer);
    case OperationKind::kRecv:
      PRESENT(ncclRecv, o.recvbuff, o.count, o.dtype, o.root_or_peer);
    case OperationKind::kPutSignal:
    case OperationKind::kSignal:
    case OperationKind::kWaitSignal:
      return issue_one_sided(kind, comm, o);
    default:
      issue_configured(o);
  }
#undef PRESENT
}

}  // namespace pynccl
