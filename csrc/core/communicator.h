// One rank of a communicator: owns the ncclComm_t, issues operations on it, and closes it.
// Arguments are checked above; what is checked here is the communicator itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/library.h"
#include "core/operation.h"

namespace pynccl {

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Options {
    ncclConfig_t config;                 // strings in it must outlive the creation
    std::optional<double> init_timeout;  // seconds; none: as long as the library waits
    int device = -1;                     // below 0: the thread's current device
    bool inherits = false;               // of a split: NCCL copies the parent's configuration
  };

  // A communicator that is yet to be made: create() or a group's end makes it.
  Communicator(std::shared_ptr<Library> library, const Options& options);
  virtual ~Communicator();  // aborts what was not closed, silently
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // For one that is made of this communicator and is to behave as it does.
  Options inherited() const;

  // The ways to make one, each in two steps so that a group can make several in one thread: begin
  // calls NCCL, finish waits (unless the user asked for a non-blocking communicator) and reads rank
  // and size. Several ids: ncclCommInitRankScalable. A parent is one that the new one is made of.
  void begin_init(int nranks, const std::vector<ncclUniqueId>& ids, int rank);
  void begin_split(Communicator& parent, int color, int key);
  void begin_shrink(Communicator& parent, std::vector<int> excluded, int flags);
  void begin_grow(Communicator& parent, int nranks, const std::optional<ncclUniqueId>& id);
  void begin_join(int nranks, const ncclUniqueId& id, int rank);
  void finish();

  // All ranks of one communicator in this process, each from the factory.
  using Factory = std::shared_ptr<Communicator> (*)(std::shared_ptr<Library>, const Options&);
  static std::vector<std::shared_ptr<Communicator>> init_all(std::shared_ptr<Library> library,
                                                             const std::vector<int>& devices,
                                                             Factory make);

  void issue(const Operation& operation);
  // For a caller that knows the kind, which gets the call of its function alone: in core/issue.h.
  void issue(OperationKind kind, const Operation& operation);
  // Whether the library has what an operation with a configuration needs: throws MissingFunction,
  // or std::invalid_argument for a field that it does not know.
  void check_configured(const Operation& operation) const;
  // Waits until a communicator that NCCL runs in the background (one with init_timeout) has taken
  // what was issued.
  void settle(const char* function = "ncclGroupEnd") {
    if (polled_) [[unlikely]]
      poll(std::nullopt, function);
  }

  void finalize();
  void close();  // finalizes and destroys; does nothing when closed already
  void abort();  // from any thread; does nothing when closed already

  ncclUniqueId get_unique_id();  // for begin_grow
  void revoke();                 // from any thread
  // In a group NCCL suspends and resumes when it ends; settle() waits for it.
  void begin_suspend();
  void begin_resume();
  std::uint64_t memory_stat(ncclCommMemStat_t stat);

  // What NCCL does in the background: how far it is, and until it is done. wait_ready throws
  // ncclTimeout when it is not done in time, and the communicator stays as it is.
  ncclResult_t async_error();
  bool ready();
  void wait_ready(std::optional<double> seconds);

  Library& library() const { return *library_; }
  const std::shared_ptr<Library>& shared_library() const { return library_; }
  [[gnu::always_inline]] ncclComm_t handle() const {  // throws std::invalid_argument unless open
    if (state_.load(std::memory_order_acquire) != State::kOpen) [[unlikely]]
      throw_not_open();
    return comm_.load(std::memory_order_relaxed);
  }
  ncclComm_t handle_or_null() const { return comm_.load(std::memory_order_acquire); }
  ncclWindow_t* new_window() { return &windows_.emplace_back(nullptr); }  // for NCCL to fill
  bool closed() const { return state_.load(std::memory_order_acquire) == State::kClosed; }
  bool pending() const {  // not made yet
    const State state = state_.load(std::memory_order_acquire);
    return state == State::kPending || state == State::kMaking;
  }
  // Asked of NCCL once. A communicator that the user polls may not know before it is ready.
  int rank() { return rank_ < 0 ? identified().rank_ : rank_; }
  int nranks() { return nranks_ < 1 ? identified().nranks_ : nranks_; }
  int device() { return identified().device_; }
  int known_rank() const { return rank_; }  // -1 where NCCL has not been asked yet

 private:
  // Making: NCCL has been asked for it, and has not given its handle yet.
  enum class State { kPending, kMaking, kOpen, kClosed };

  [[noreturn]] void throw_not_open() const;
  void check(ncclResult_t result, const char* function, int line) {
    if (!good(result)) [[unlikely]]
      throw_failed(result, function, line);
  }
  [[noreturn]] void throw_failed(ncclResult_t result, const char* function, int line);
  void poll(std::optional<double> seconds, const char* function);
  enum class Late { kAbort, kLeave };
  void poll(std::optional<double> seconds, const char* function, Late late);
  void begin_child(Communicator& parent, const char* creator);
  ncclConfig_t* child_config() { return options_.inherits ? nullptr : &options_.config; }
  bool take_handle();
  Communicator& identified() {
    if (device_ < 0 && !closed()) [[unlikely]]
      read_identity();
    return *this;
  }
  void read_identity();
  void issue_configured(const Operation& operation);
  void exchange_blocks(const Operation& operation, int nranks);

  std::shared_ptr<Library> library_;
  Options options_;
  std::atomic<State> state_ = State::kPending;
  std::atomic<ncclComm_t> comm_ = nullptr;
  // Where NCCL writes the handle, of a child of a non-blocking communicator later and from a thread
  // of its own: so the parent holds on to it as well.
  std::shared_ptr<ncclComm_t> created_ = std::make_shared<ncclComm_t>(nullptr);
  std::vector<std::shared_ptr<ncclComm_t>> children_;
  std::shared_ptr<Communicator> parent_;  // until there is a handle
  bool leaves_ = false;                   // a rank that split() leaves without a communicator
  bool polled_ = false;                   // NCCL's non-blocking mode, used by us to keep a deadline
  std::atomic<bool> revoked_ = false;
  std::deque<ncclWindow_t> windows_;
  int rank_ = -1;
  int nranks_ = 0;
  int device_ = -1;
  const char* creator_ = "ncclCommInitRankConfig";
};

// A group of NCCL calls on one library: open from construction to end(). A group that is left
// without end() is closed as well, and what its calls answered is lost: it exists for exceptions on
// the way.
class GroupScope {
 public:
  explicit GroupScope(Library& library);
  ~GroupScope();
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;
  void end();
  // Ends it without running anything: the seconds that the library thinks it would take, if it has
  // an idea.
  std::optional<double> end_simulated();

 private:
  Library& library_;
  bool open_ = true;
};

std::size_t element_size(ncclDataType_t dtype);  // bytes

}  // namespace pynccl
