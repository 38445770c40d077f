// One rank of a communicator: owns the ncclComm_t or borrows it, issues operations on it, and
// closes it. The bindings check the arguments of an operation; this class checks the state of the
// communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
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
#include "comm/timeout_policy.h"
#include "nccl/barrier.h"
#include "nccl/error.h"
#include "nccl/library.h"

namespace pynccl {

class Window;

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Options {
    ncclConfig_t config;                      // strings in it must outlive the creation
    std::optional<double> init_timeout;       // seconds; none: the library's own limit
    std::optional<double> timeout;            // seconds of every operation; none: default_limit()
    std::optional<TimeoutPolicy> on_timeout;  // none: default_policy()
    std::shared_ptr<void> store;              // of the bindings; children have it, too
    std::optional<std::uint64_t> check;       // compare every N-th collective
    int device = -1;                          // below 0: the thread's current device
    bool inherits = false;                    // of a child: NCCL copies the parent's configuration
  };

  // A pending communicator, without an ncclComm_t: begin_...() and finish() make it.
  Communicator(std::shared_ptr<Library> library, const Options& options);
  virtual ~Communicator();  // aborts where it was not closed; never throws
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // The options of a child that inherits this communicator's configuration.
  Options inherited() const;

  // The ways to make a communicator, each in two steps so that a group can make several on one
  // thread: begin_...() calls NCCL; finish() takes over the handle and, unless the user asked for a
  // non-blocking communicator, waits until it is ready and reads rank and size. Several ids use
  // ncclCommInitRankScalable. A child is made from its parent.
  void begin_init(int nranks, const std::vector<ncclUniqueId>& ids, int rank);
  void begin_split(Communicator& parent, int color, int key);
  void begin_shrink(Communicator& parent, std::vector<int> excluded, int flags);
  void begin_grow(Communicator& parent, int nranks, const std::optional<ncclUniqueId>& id);
  void begin_join(int nranks, const ncclUniqueId& id, int rank);
  void finish();

  // Who frees a borrowed handle.
  struct Owner {
    std::shared_ptr<Communicator> communicator;  // null: not one of pynccl
    // Otherwise, where the owner can say: the handle, null once it is closed. From any thread.
    std::function<ncclComm_t()> ask;
    std::shared_ptr<void> object;  // of the bindings, kept as long as the handle is borrowed
  };
  // Uses a handle that stays its owner's: the end of this communicator only forgets it. It is
  // closed when its owner is. Throws std::invalid_argument where the owner has closed it.
  void borrow(ncclComm_t comm, Owner owner);
  bool borrowed() const { return borrowed_; }
  // Throws std::invalid_argument for a call that only the owner can make.
  void check_owned(const char* call) const;
  // The open communicator with a handle that it owns; null where there is none.
  static std::shared_ptr<Communicator> find(const Library& library, ncclComm_t comm);
  // Of a borrowed one: finds out whether its owner has closed it.
  void ask_owner() noexcept {
    if (state_.load() == State::kLent) still_lent();
  }
  // Buffers that are registered with it, which a borrowed one must not outlive.
  void add_registrations(int count) { registrations_ += count; }

  // Calls steps, which takes both steps for these communicators. Where they have an init_timeout,
  // it throws ncclTimeout after the shortest. A library with hostSetInitTimeout ends its call then.
  // In NCCL nothing can: the call continues on a thread of its own, which aborts the communicators
  // afterwards.
  static void make(const std::vector<std::shared_ptr<Communicator>>& made,
                   const std::function<void()>& steps);

  static void observe();  // adds the observer of failed work; see watch/observers.h

  // All ranks of one communicator in this process (ncclCommInitAll), each made by the factory.
  using Factory = std::shared_ptr<Communicator> (*)(std::shared_ptr<Library>, const Options&);
  static std::vector<std::shared_ptr<Communicator>> init_all(
      const std::shared_ptr<Library>& library, const std::vector<int>& devices, Factory make);

  void issue(const Operation& operation);
  // The same for a kind known at compile time, inlined to the call of its function.
  void issue(OperationKind kind, const Operation& operation);
  // In an open group, between begin_group() and end_group() of the communicator.
  void issue_in_group(const Operation& operation);
  // A non-blocking communicator returns from an operation, and from the end of a group, before NCCL
  // has issued it, and refuses the next call until then, for good: waits for that, within the time
  // limit of the operations.
  void wait_issued(const char* function);
  // The same in a group whose end only simulates it: it is not recorded.
  void simulate_in_group(const Operation& operation);
  // Checks that the library supports an operation with a configuration. Throws MissingFunction, or
  // std::invalid_argument for a field that the library is too old for.
  void check_configured(const Operation& operation) const;

  void finalize();
  // Finalizes and destroys; closing twice is allowed. A communicator with an asynchronous error is
  // aborted, and the error is thrown unless an operation has thrown one before.
  void close();
  // From any thread; does nothing where it is closed. Calls of other threads return first, from
  // NCCL 2.28.7 on because they are revoked. NCCL may wait for graphs and streams without
  // limit: after some seconds the abort continues in the background.
  void abort();
  // abort() for a communicator that nobody needs. One that shares its parent's resources is
  // destroyed in the background instead.
  void discard() noexcept;

  // A call that makes a communicator from this one or changes its windows, from construction to
  // destruction. NCCL has one such call at a time: throws std::invalid_argument where another
  // thread is in one.
  class Claim {
   public:
    explicit Claim(const std::shared_ptr<Communicator>& communicator);
    ~Claim();
    Claim(Claim&&) = default;
    Claim& operator=(Claim&&) = delete;

   private:
    std::shared_ptr<Communicator> communicator_;
  };

  // A call of NCCL that uses the communicator, from construction to destruction: an abort on
  // another thread waits for it. Throws std::invalid_argument unless the communicator is open or
  // suspended. Several communicators, in a group: begin_use() and end_use().
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
  // Throws for a result of NCCL. Where another thread has aborted the communicator, the text says
  // so. hint: follows NCCL's text of ncclInvalidArgument.
  [[noreturn]] void throw_failed(ncclResult_t result, const char* function, const char* file,
                                 int line, const char* hint = "");
  // The same for a group that has thrown: its communicators add to the text.
  template <std::ranges::input_range Communicators>
  [[noreturn]] static void rethrow_failed(const NcclFailure& failure,
                                          const Communicators& communicators) {
    NcclFailure annotated = failure;
    for (Communicator* communicator : communicators) annotated = communicator->annotated(annotated);
    throw annotated;
  }

  // The deadlines of its operations and calls, and the records of its operations.
  Deadlines& deadlines() { return *deadlines_; }
  const Deadlines& deadlines() const { return *deadlines_; }
  // For the monitor: something has not come in time. The communicator is revoked, or aborted where
  // NCCL cannot revoke it; all who wait, and later operations, throw ncclTimeout. answer: of an
  // Inquiry, with the ranks that are missing where it knows them.
  void expire(const Deadlines::Late& late, const std::string& answer,
              const std::optional<std::vector<int>>& missing);
  // Before it expires, an Inquiry asks which ranks are missing.
  void inquire() { inquires_.store(true, std::memory_order_relaxed); }
  bool inquires() const { return inquires_.load(std::memory_order_relaxed); }
  bool expired() const { return expired_.load(std::memory_order_acquire); }
  void check_state();  // throws what has failed or expired; from any thread
  // What it throws after it has expired. nccl: the text of NCCL's failure, or empty.
  NcclFailure expiry(const std::string& function, const std::string& nccl = "") const;
  // Asks NCCL whether it has an asynchronous error, which is its failure then.
  void record_async_failure() noexcept;
  void set_name(const std::string& name);  // in the flight record
  void set_policy(TimeoutPolicy policy);
  TimeoutPolicy policy() const;

  // recover(), in steps. Revokes the communicator where NCCL can, so that the ranks that wait for
  // this one hear of it. Its time limit does not apply any more.
  void begin_recovery();
  // The lost ranks, as agreed by the surviving ones (hostCommAgree). Waits for ranks that are not
  // known to be lost. No value if the library has no such function.
  std::optional<std::vector<int>> agree(double seconds, std::vector<int> lost);
  // Creates the communicator of the surviving ranks.
  void begin_recovered(Communicator& parent, const std::vector<int>& lost);
  // The time limit of the creation; returns the one before.
  std::optional<double> limit_creation(std::optional<double> seconds) {
    return std::exchange(options_.init_timeout, seconds);
  }
  void set_timeout(std::optional<double> seconds);  // of its operations, from now on

  ncclUniqueId get_unique_id();  // for begin_grow
  void revoke();                 // from any thread
  // Inside a group NCCL suspends and resumes at its end, before finish_change().
  void begin_suspend();
  void begin_resume();
  void finish_change();
  std::uint64_t memory_stat(ncclCommMemStat_t stat);

  // The state of NCCL's background work (ncclCommGetAsyncError). wait_ready throws ncclTimeout
  // where the work takes longer and leaves the communicator as it is.
  // async_error() also notes that a communicator in progress is ready again.
  ncclResult_t async_error();
  bool failed() noexcept;  // whether it is closed, or NCCL has an asynchronous error
  bool ready();
  void wait_ready(std::optional<double> seconds);

  Library& library() const { return *library_; }
  const std::shared_ptr<Library>& shared_library() const { return library_; }
  const std::shared_ptr<void>& store() const { return options_.store; }
  std::uint64_t check() const { return options_.check.value_or(0); }  // 0: nothing is compared
  // Throws std::invalid_argument unless it is open, and ncclInvalidUsage while it is suspended:
  // NCCL does not check that, and would run on memory that it has released.
  [[gnu::always_inline]] ncclComm_t handle() {
    if (state_.load(std::memory_order_acquire) != State::kOpen) [[unlikely]]
      check_open();
    return comm_.load(std::memory_order_relaxed);
  }
  ncclComm_t handle_or_null() {
    ask_owner();
    return comm_.load(std::memory_order_acquire);
  }
  ncclWindow_t* new_window();  // NCCL writes it
  // The memory of windows. NCCL finds a window by its address: add_memory() is false for one that
  // is in use.
  struct WindowMemory {
    std::size_t nbytes;
    bool symmetric;
    std::uint64_t number = 0;        // of the registered windows; equal on all ranks
    const Window* window = nullptr;  // once it is open, while it is not deleted
  };
  bool add_memory(void* address, WindowMemory memory);
  // Gives it its number, and returns it. window is null where it is that of a device communicator.
  std::uint64_t open_memory(void* address, const Window* window);
  std::map<const char*, WindowMemory> window_memory() const;  // by address
  void forget_window(void* address);                          // the memory stays registered
  void remove_memory(void* address);
  // The open window with this address of the own memory, else std::invalid_argument.
  const Window& window_at(const void* address) const;
  bool in_symmetric_window(const void* data, std::size_t nbytes) const;
  std::uint64_t window_fingerprint() const;  // equal on ranks with the same open windows
  bool set_up_one_sided() { return !std::exchange(one_sided_, true); }  // true once
  void keep_until_closed(std::shared_ptr<void> memory);
  // One byte on the device, for barriers: what allocate returns at the first call.
  void* barrier_memory(const std::function<std::shared_ptr<void>()>& allocate);
  bool revoked() const { return revoked_.load(std::memory_order_relaxed); }
  bool blocking() const { return options_.config.blocking != 0; }
  bool closed() const { return state_.load(std::memory_order_acquire) >= State::kClosed; }
  bool pending() const {  // it has no ncclComm_t yet
    const State state = state_.load(std::memory_order_acquire);
    return state == State::kPending || state == State::kCreating;
  }
  // Read from NCCL once. A non-blocking communicator has no value before it is ready.
  int rank() { return rank_ < 0 ? identified().rank_ : rank_; }
  int nranks() { return nranks_ < 1 ? identified().nranks_ : nranks_; }
  int device() { return identified().device_; }
  std::shared_ptr<Deadlines> shared_deadlines() const { return deadlines_; }
  std::atomic<std::uint64_t>& trace_number() { return trace_number_; }  // of watch/trace
  int known_rank() const { return rank_; }  // -1 where it has not been read yet

 private:
  // kCreating: NCCL was called and has not written the handle yet. kExpired, and kShrunk after
  // shrink(abort): open, but operations are refused. kLent: open, and its owner has to be asked
  // before each use. kUnready: open, and a call of a non-blocking communicator may be in progress,
  // so NCCL has to be asked. kAbandoned: init_timeout has passed while NCCL was called.
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

  NcclFailure annotated(const NcclFailure& failure);  // with what the communicator knows of it

  // A Use in issue(), at the price of two stores: one thread at a time issues operations.
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
  // The state while no call is in progress.
  State idle_state() const { return shrunk_by_abort_ ? State::kShrunk : State::kOpen; }
  bool settle();
  void forget() noexcept;
  void forget_unless_registered();
  Owner owner() const;
  std::shared_ptr<Communicator> root();
  std::vector<std::shared_ptr<Communicator>> borrowers() const;
  void notify_observers(bool aborted) const;
  void mark_revoked(bool revoked = true);
  void mark_shrunk();
  void clear_error();
  void identify_borrowed(Communicator* owner);
  void check(ncclResult_t result, const char* function, const char* hint = "",
             std::source_location where = std::source_location::current()) {
    if (!succeeded(result)) [[unlikely]]
      throw_failed(result, function, where.file_name(), static_cast<int>(where.line()), hint);
  }
  // The same for the call of an operation.
  void check_operation(ncclResult_t result, const char* function, const char* hint = "",
                       std::source_location where = std::source_location::current()) {
    if (result != ncclSuccess) [[unlikely]]
      check_unfinished(result, function, hint, where);
  }
  void check_unfinished(ncclResult_t result, const char* function, const char* hint,
                        std::source_location where);
  [[noreturn]] void throw_operation_failed(ncclResult_t result, const char* function,
                                           const char* hint, std::source_location where);
  // A call of NCCL that waits for the other ranks, from construction to destruction. After the
  // communicator has expired its errors are its own: shrink() is made for that.
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
  // Of begin_child(): call takes the parent's handle, and holds what it uses itself. Where nothing
  // but its own thread can end it, which is where the parent was revoked, it has a time limit.
  ncclResult_t call_parent(Communicator& parent,
                           const std::function<ncclResult_t(ncclComm_t)>& call);
  bool shares() const;
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
  void revoke_handle();
  void wait_for_expiry() const;
  ncclConfig_t* child_config() { return options_.inherits ? nullptr : &options_.config; }
  bool take_handle();
  Communicator& identified() {
    if (device_ < 0 && !closed()) [[unlikely]]
      read_identity();
    return *this;
  }
  void begin_deadlines();
  // The identity of a communicator made by unique ids, by ncclCommInitAll, and from a parent.
  void identify_new(const std::vector<ncclUniqueId>& ids);
  void identify_local();
  void identify_split(Communicator& parent, int color);
  void identify_shrunk(Communicator& parent, const std::vector<int>& excluded);
  void identify_recovered(const Communicator& parent, const std::vector<int>& lost);
  void identify_grown(Communicator& parent, const std::optional<ncclUniqueId>& id);
  void derive_id(const Communicator& parent, std::initializer_list<std::uint64_t> words,
                 std::vector<int> ranks = {});
  void publish_identity();
  // What it throws once it has expired.
  struct Expiry {
    std::string text;
    std::optional<std::vector<int>> missing;  // none: not known
  };
  class WorkFailures;
  // Throws what the communicator whose work has failed says of it; returns where it is not known.
  static void check_failed_work(const Library& library, const WorkFailure& failure);
  std::optional<NcclFailure> record_expiry(const Deadlines::Late& late, Expiry expiry);
  void record_failure(ncclResult_t result, const std::string& text) noexcept;
  Deadlines::Unfinished unfinished_on_device(double seconds = 0.05);
  void fail_unfinished(const Deadlines::Unfinished& unfinished, const NcclFailure& failure);
  void read_identity();
  ncclResult_t read_async_error();  // from any thread, once there is a handle
  void choose_device();
  void abandon();
  void free_abandoned();
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
  void issue_as_messages(const Operation& operation, int nranks);

  // What an operation reads comes first.
  std::shared_ptr<Library> library_;
  std::atomic<State> state_ = State::kPending;
  std::atomic<ncclComm_t> comm_ = nullptr;
  std::atomic<bool> issuing_ = false;
  int device_ = -1;
  std::atomic<std::uint64_t> trace_number_ = 0;
  const std::shared_ptr<Deadlines> deadlines_ = std::make_shared<Deadlines>();
  Options options_;  // on_timeout is set, and under mutex_
  std::atomic<int> uses_ = 0;
  std::atomic<bool> expired_ = false;
  std::atomic<bool> expiry_ended_ = false;  // it is revoked, or was aborted
  std::atomic<bool> inquires_ = false;
  // Where NCCL writes the handle. For a child of a non-blocking parent a thread of NCCL writes it
  // later, so the parent keeps this memory alive too.
  std::shared_ptr<ncclComm_t> created_ = std::make_shared<ncclComm_t>(nullptr);
  std::vector<std::shared_ptr<ncclComm_t>> children_;
  std::shared_ptr<Communicator> parent_;  // until it is ready again
  std::unique_ptr<Claim> parent_claim_;   // until finish() returns
  bool borrowed_ = false;
  std::atomic<int> registrations_ = 0;
  bool no_color_ = false;  // split() with NCCL_SPLIT_NOCOLOR: no communicator
  // NCCL shares the memory and the abort flag of a parent with its children where the parent's
  // configuration says so.
  std::weak_ptr<Communicator> shared_parent_;
  std::vector<std::weak_ptr<Communicator>> shared_children_;
  std::vector<std::weak_ptr<Communicator>> shrunk_;  // the children of shrink()
  std::atomic<bool> growing_ = false;                // between get_unique_id() and begin_grow()
  State changed_ = State::kOpen;                     // by finish_change()
  std::atomic<bool> revoked_ = false;
  std::atomic<bool> shrunk_by_abort_ = false;
  std::atomic<bool> error_thrown_ = false;  // an operation has thrown what NCCL returned
  std::atomic<bool> failure_recorded_ = false, failure_dumped_ = false;
  std::uint64_t splits_ = 0, grows_ = 0, borrows_ = 0;  // that were called on it
  std::atomic<bool> finalized_ = false;                 // ncclCommFinalize was called
  std::atomic<bool> was_ready_ = false;                 // of a non-blocking one: it has been made
  mutable std::mutex mutex_;                            // of the following, up to kept_
  std::weak_ptr<Communicator> created_from_;
  std::shared_ptr<const Owner> owner_;                  // of a borrowed handle
  std::vector<std::weak_ptr<Communicator>> borrowers_;  // of this one's handle
  Expiry expiry_;                                       // once expired: the whole text
  FlightIdentity identity_;
  std::thread::id claimed_by_;
  int claims_ = 0;
  std::deque<ncclWindow_t> windows_;
  std::map<const char*, WindowMemory> window_memory_;  // by address
  std::uint64_t registered_windows_ = 0;
  std::vector<std::shared_ptr<void>> kept_;  // the memory of windows that were not closed
  std::shared_ptr<void> barrier_memory_;
  bool one_sided_ = false;
  int rank_ = -1;
  int nranks_ = 0;
  std::atomic<const char*> creator_ = "ncclCommInitRankConfig";
};

// NCCL_CHECK with a Use throws by throw_failed().
[[noreturn]] inline void throw_nccl(const Library&, ncclResult_t result, const char* function,
                                    const Communicator::Use& use, int, const char* file, int line) {
  use.communicator().throw_failed(result, function, file, line);
}

// The groups of raw.ncclGroupStart() on this thread. What NCCL makes inside one is ready only at
// its end, so the objects make nothing there.
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

// A group of NCCL calls on one library (ncclGroupStart, ncclGroupEnd), open from construction to
// end(). The destructor ends a group that an exception left open and ignores the result.
class GroupScope {
 public:
  explicit GroupScope(Library& library);
  ~GroupScope();
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;
  bool end();  // whether it is in progress: Communicator::wait_issued()
  // Ends the group without running it (ncclGroupSimulateEnd): the estimated seconds, none where the
  // library has no estimate.
  std::optional<double> end_simulated();

 private:
  Library& library_;
  bool open_ = true;
};

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
#define CALL(entry, function, ...)                                  \
  check_operation((entry)(__VA_ARGS__, comm, o.stream), #function); \
  return
#define PRESENT(function, ...) CALL(nccl.function, function, __VA_ARGS__)
#define ONE_SIDED(function, ...)                                                                  \
  check_operation(library_->nccl<&NcclTable::function>()(__VA_ARGS__, comm, o.stream), #function, \
                  kOneSidedHint);                                                                 \
  return
  // PRESENT: every library from 2.18 on has the function, or sends and receives replace
  // it. ONE_SIDED: a library without the function is an error.
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
      o.window->record_put(o.stream);
      ONE_SIDED(ncclPutSignal, o.sendbuff, o.count, o.dtype, o.root_or_peer, o.window->handle(),
                o.offset, o.signal, o.context, 0);
    case OperationKind::kSignal:
      ONE_SIDED(ncclSignal, o.root_or_peer, o.signal, o.context, 0);
    case OperationKind::kWaitSignal:
      ONE_SIDED(ncclWaitSignal, static_cast<int>(o.count),
                static_cast<ncclWaitSignalDesc_t*>(const_cast<void*>(o.sendbuff)));
    default:
      issue_configured(o);
  }
#undef ONE_SIDED
#undef PRESENT
#undef CALL
}

}  // namespace pynccl
