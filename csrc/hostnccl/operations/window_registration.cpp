#include "hostnccl/operations/window_registration.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "abi/constants.h"
#include "hostnccl/operations/progress_engine.h"
#include "hostnccl/rendezvous/file_exchange.h"

namespace hostnccl {
namespace {

// The result of a rank's part of the registration: ncclSuccess or its error.
struct Status : ErrorRecord<512> {
  bool success() const { return code == abi::ncclSuccess; }

  static Status of(const std::optional<Error>& error) {
    Status status{};
    if (error) status.set(*error);
    return status;
  }
};

// The memory that a rank registers.
struct Contribution {
  uint64_t address;
  uint64_t bytes;
  uint64_t offset;       // in its memory file
  uint64_t open_before;  // WindowSet::identity()
  WindowUse use;
  RendezvousKey key;  // of its file exchange
  Status status;
};

// The registration of one window on one rank. It records its errors and does not throw them: the
// rank still takes part in the second all-gather, in which all ranks get the error.
class Registration {
 public:
  Registration(const Ref<Communicator>& comm, void* buffer, size_t bytes, WindowUse use)
      : handle_(handle_of(comm)),
        comm_(*comm),
        segment_(comm->segment()),
        rank_(comm->rank()),
        use_(use) {
    record_error([&] {
      if (use_ == WindowUse::Resources) resources_ = buffer = allocate_memory(bytes);
      check_buffer(buffer, bytes);
    });
  }
  ~Registration() {
    if (window_ && !finished_) handles<Window>().close(window_);
    if (resources_ != nullptr) free_memory(resources_);  // a window keeps the allocation
  }

  // Called in the order of operations, so all ranks take the same window number.
  Contribution contribution() {
    number_ = comm_.windows().next_number();
    Contribution own{};
    own.address = reinterpret_cast<uint64_t>(own_.local);
    own.bytes = own_.bytes;
    own.offset = offset_;
    own.use = use_;
    own.open_before = comm_.windows().open_set()->identity();
    own.status = Status::of(error_);
    if (files_) own.key = files_->key();
    return own;
  }

  // Maps the memory of the other ranks and opens the window, if no rank has an error.
  void map(const std::vector<Contribution>& all) {
    for (size_t rank = 0; rank < all.size(); ++rank) note_status(int(rank), all[rank].status);
    record_error([&] { check_use(all); });
    if (comm_.settings().strict) record_error([&] { check_alike(all); });
    if (!error_) record_error([&] { open(all, exchange_files(all)); });
    files_.reset();  // peers that still wait for this rank's file see the end of its exchange
  }

  Status status() const { return Status::of(error_); }

  void note_status(int rank, const Status& status) {
    if (status.success() || error_) return;
    error_ = Error(status.error().code(), format("%s cannot register a window: %s",
                                                 segment_.name_of(rank).c_str(), status.text));
  }

  // Called with the statuses of all ranks. No rank gets the window if one has failed.
  void finish() {
    if (error_) return;
    comm_.windows().add(window_, std::move(larger_set_));
    finished_ = true;
  }

  const std::optional<Error>& error() const { return error_; }
  const Ref<Window>& window() const { return window_; }

 private:
  // Runs body and records its error, unless there is one already.
  template <typename Body>
  void record_error(const Body& body) {
    try {
      body();
    } catch (...) {
      if (!error_) error_ = current_error();
    }
  }

  void check_buffer(void* buffer, size_t bytes) {
    if (bytes == 0) fail(abi::ncclInvalidArgument, "size=0: a window cannot be empty");
    if (reinterpret_cast<uintptr_t>(buffer) % abi::NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
      fail(abi::ncclInvalidArgument, "buff=%p is not aligned to NCCL_WIN_REQUIRED_ALIGNMENT=%d",
           buffer, abi::NCCL_WIN_REQUIRED_ALIGNMENT);
    }
    own_.allocation = find_allocation(buffer, bytes);
    if (own_.allocation == nullptr) {
      fail(
          abi::ncclInvalidArgument,
          "buff=%p with size=%zu is not within one allocation of ncclMemAlloc; other ranks can map "
          "only such memory",
          buffer, bytes);
    }
    own_.local = static_cast<char*>(buffer);
    own_.bytes = bytes;
    offset_ = static_cast<size_t>(own_.local - own_.allocation->base());
    for (int rank = 0; rank < segment_.nranks() && !files_; ++rank) {
      if (!segment_.same_process(rank)) files_.emplace();
    }
  }

  // NCCL pairs the calls of the ranks without comparing them.
  void check_use(const std::vector<Contribution>& all) const {
    const auto creates = [](const Contribution& each) { return each.use == WindowUse::Resources; };
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (creates(all[rank]) != creates(all[0])) {
        const size_t creator = creates(all[0]) ? 0 : rank;
        fail(abi::ncclInvalidUsage,
             "the calls of the ranks differ: %s is in ncclDevCommCreate, %s in "
             "ncclCommWindowRegister",
             segment_.name_of(static_cast<int>(creator)).c_str(),
             segment_.name_of(static_cast<int>(creator == 0 ? rank : 0)).c_str());
      }
      if (creates(all[0]) && all[rank].status.success() && all[0].status.success() &&
          all[rank].bytes != all[0].bytes) {
        fail(abi::ncclInvalidUsage,
             "the device communicator has %llu bytes of resources on %s, and %llu bytes on %s: the "
             "requirements must be the same on all ranks",
             static_cast<unsigned long long>(all[0].bytes), segment_.name_of(0).c_str(),
             static_cast<unsigned long long>(all[rank].bytes),
             segment_.name_of(static_cast<int>(rank)).c_str());
      }
    }
  }

  // NCCL addresses a peer's memory by the offset of its own memory, and takes the offset of a
  // window from an allocator per rank.
  void check_alike(const std::vector<Contribution>& all) const {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank].status.success() && all[0].status.success() &&
          all[rank].offset != all[0].offset) {
        fail(abi::ncclInvalidUsage,
             "the window begins %llu bytes after the beginning of its allocation on %s, and %llu "
             "bytes on %s",
             static_cast<unsigned long long>(all[0].offset), segment_.name_of(0).c_str(),
             static_cast<unsigned long long>(all[rank].offset),
             segment_.name_of(static_cast<int>(rank)).c_str());
      }
      if (all[rank].open_before != all[0].open_before) {
        fail(abi::ncclInvalidUsage,
             "%s and %s have different windows open: they deregister windows in different orders",
             segment_.name_of(0).c_str(), segment_.name_of(static_cast<int>(rank)).c_str());
      }
    }
  }

  std::vector<FileExchange::Peer> exchange_files(const std::vector<Contribution>& all) {
    std::vector<FileExchange::Peer> peers;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (!segment_.same_process(int(rank))) peers.push_back({int(rank), all[rank].key});
    }
    const uint32_t step = comm_.collective().step_of(rank_).load_own();
    const auto has_ended = [this, step](int rank) { return check_peer(rank, step + 1); };
    if (!peers.empty()) files_->run(rank_, own_.allocation->file(), peers, has_ended);
    return peers;
  }

  void open(const std::vector<Contribution>& all, const std::vector<FileExchange::Peer>& peers) {
    std::vector<Window::Part> parts(all.size());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const Contribution& registered = all[rank];
      Window::Part& part = parts[rank];
      part.address = registered.address;
      part.bytes = registered.bytes;
      if (!segment_.same_process(int(rank))) continue;
      part.local = reinterpret_cast<char*>(registered.address);
      part.allocation = find_allocation(part.local, part.bytes);
      if (part.allocation != nullptr) continue;
      fail(abi::ncclInvalidUsage, "the memory of %s was freed while it was being registered",
           segment_.name_of(int(rank)).c_str());
    }
    FlatMemory flat(segment_.nranks(), most_bytes(all), offset_);
    for (const FileExchange::Peer& peer : peers) {
      if (!peer.file) return;  // the peer has failed. Its status contains the reason
      Window::Part& part = parts[static_cast<size_t>(peer.rank)];
      flat.map(peer.rank, peer.file.get(), all[static_cast<size_t>(peer.rank)].offset, part.bytes);
      part.local = flat.address(peer.rank);
    }
    for (int rank = 0; rank < segment_.nranks(); ++rank) {
      const Window::Part& part = parts[static_cast<size_t>(rank)];
      if (part.allocation == nullptr) continue;
      const auto offset = static_cast<size_t>(part.local - part.allocation->base());
      flat.map(rank, part.allocation->file(), offset, part.bytes);
    }
    larger_set_ = comm_.windows().make_larger_set();
    window_ = handles<Window>().open(std::make_unique<Window>(
        handle_, number_, rank_, use_ == WindowUse::Symmetric, std::move(parts), std::move(flat)));
    show_to_kernels();
  }

  static size_t most_bytes(const std::vector<Contribution>& all) {
    size_t most = 0;
    for (const Contribution& registered : all) most = std::max(most, size_t{registered.bytes});
    return most;
  }

  void show_to_kernels() const {
    abi::ncclWindow_vidmem& view = window_.slot()->view.for_kernels;
    view = {};
    view.winHost = &view;
    view.lsaFlatBase = window_->flat().address(0);
    view.stride4G = window_->flat().stride_4g();
    view.lsaRank = view.worldRank = rank_;
    view.numSegments = 1;
    view.winFlags = use_ == WindowUse::Symmetric ? abi::NCCL_WIN_COLL_SYMMETRIC : 0;
  }

  // Whether a rank has reached the step after the exchange. Throws if it can no longer do so.
  bool check_peer(int rank, uint32_t step) {
    const WaitCondition next{&comm_.collective().step_of(rank), step};
    if (next.met()) return true;
    comm_.state().check_wait({next, rank}, true);
    return false;
  }

  const abi::ncclComm_t handle_;
  Communicator& comm_;
  Segment& segment_;
  const int rank_;
  const WindowUse use_;
  void* resources_ = nullptr;
  uint64_t number_ = 0;
  Window::Part own_;
  size_t offset_ = 0;
  std::optional<FileExchange> files_;  // none if all ranks are in this process
  Ref<Window> window_;
  std::shared_ptr<WindowSet> larger_set_;
  bool finished_ = false;
  std::optional<Error> error_;
};

}  // namespace

Task run_registration(Communicator& comm, const Operation& operation) {
  Registration& registration = *static_cast<Registration*>(operation.recv);
  const size_t nranks = static_cast<size_t>(comm.nranks());

  std::vector<Contribution> contributions(nranks);
  const Contribution own = registration.contribution();
  const Operation gather_contributions = all_gather(Kind::WindowRegister, own, contributions);
  Task contributing = run_collective(comm, gather_contributions);
  while (!contributing.resume()) co_await Until{contributing.blocked()};
  registration.map(contributions);

  std::vector<Status> statuses(nranks);
  const Status own_status = registration.status();
  const Operation gather_statuses = all_gather(Kind::WindowRegister, own_status, statuses);
  Task reporting = run_collective(comm, gather_statuses);
  while (!reporting.resume()) co_await Until{reporting.blocked()};
  for (int rank = 0; rank < comm.nranks(); ++rank) {
    registration.note_status(rank, statuses[static_cast<size_t>(rank)]);
  }
  registration.finish();
}

Ref<Window> register_window(const Job& job, void* buffer, size_t bytes, WindowUse use) {
  Registration registration(job.parent, buffer, bytes, use);
  Operation operation{Kind::WindowRegister, abi::ncclUint8};
  operation.recv = &registration;
  run_operation(job.parent, operation, job.sequence);
  if (registration.error()) throw *registration.error();
  return registration.window();
}

Job registration_job(const Ref<Communicator>& comm, std::function<void(const Job&)> run) {
  Job job;
  job.parent = comm;
  job.blocking = comm->settings().blocking || comm->settings().strict_calls;
  std::shared_ptr<ActivityGuard> background;
  if (!job.blocking) {
    background = std::make_shared<ActivityGuard>(comm, CommState::Activity::Registration);
  }
  job.work = [run = std::move(run), background](const Job& self) {
    // Abort and destroy wait for this job: after them the caller may free the memory to which the
    // job writes.
    const JobGuard guard(self.parent);
    try {
      run(self);
    } catch (...) {
      // In the background, no caller receives the exception.
      if (!self.blocking) self.parent->state().fail(current_error());
      throw;
    }
  };
  return job;
}

}  // namespace hostnccl
