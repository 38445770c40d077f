#include "hostnccl/operations/window_registration.h"

#include <unistd.h>

#include <cstring>
#include <optional>

#include "abi/constants.h"
#include "hostnccl/operations/collective.h"
#include "hostnccl/operations/progress_engine.h"
#include "hostnccl/rendezvous/file_exchange.h"

namespace hostnccl {
namespace {

// Why a rank has no window, if it has none.
struct Verdict {
  bool good;
  abi::ncclResult_t code;
  char text[512];

  static Verdict of(const std::optional<Error>& error) {
    Verdict verdict{!error, abi::ncclSuccess, {}};
    if (!error) return verdict;
    verdict.code = error->code();
    std::strncpy(verdict.text, error->text().c_str(), sizeof verdict.text - 1);
    return verdict;
  }
};

struct Offer {
  uint64_t address;
  uint64_t bytes;
  uint64_t offset;  // in its file
  FileExchange::Address post;
  Verdict verdict;
};

// What a rank has of a window while it is being made.
class Registration {
 public:
  Registration(Communicator& comm, void* buffer, size_t bytes)
      : comm_(comm), segment_(comm.segment()), rank_(comm.rank()) {
    attempt([&] { prepare(buffer, bytes); });
  }

  // In its turn, which is what makes the number the same on all ranks.
  Offer offer() {
    number_ = comm_.windows().next_number();
    Offer offer{
        reinterpret_cast<uint64_t>(own_.local), own_.bytes, offset_, {}, Verdict::of(error_)};
    if (exchange_) offer.post = exchange_->address();
    return offer;
  }

  // The others' memory into this process; nothing once a rank has said that it brings none.
  void take(const std::vector<Offer>& offers) {
    for (size_t rank = 0; rank < offers.size(); ++rank) note(int(rank), offers[rank].verdict);
    if (error_) return;
    std::vector<FileExchange::Peer> peers;
    for (size_t rank = 0; rank < offers.size(); ++rank) {
      if (!segment_.same_process(int(rank))) peers.push_back({int(rank), offers[rank].post, Fd()});
    }
    if (!peers.empty()) {
      exchange_->run(rank_, own_.allocation->file(), peers, [this](int rank) { check(rank); });
    }
    attempt([&] { reach(offers, peers); });
  }

  Verdict verdict() const { return Verdict::of(error_); }

  void note(int rank, const Verdict& verdict) {
    if (verdict.good || error_) return;
    error_ = Error(verdict.code, format("%s registers no window: %s",
                                        segment_.name_of(rank).c_str(), verdict.text));
  }

  Ref<Window> finish() {
    if (error_) throw *error_;
    Ref<Window> window =
        windows().open(std::make_unique<Window>(&comm_, number_, rank_, std::move(parts_)));
    comm_.windows().add(window);
    return window;
  }

 private:
  template <typename Body>
  void attempt(const Body& body) {
    try {
      body();
    } catch (...) {
      if (!error_) error_ = current_error();
    }
  }

  void prepare(void* buffer, size_t bytes) {
    if (bytes == 0) fail(abi::ncclInvalidArgument, "size=0: a window cannot be empty");
    if (reinterpret_cast<uintptr_t>(buffer) % abi::NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
      fail(abi::ncclInvalidArgument, "buff=%p is not aligned to NCCL_WIN_REQUIRED_ALIGNMENT=%d",
           buffer, abi::NCCL_WIN_REQUIRED_ALIGNMENT);
    }
    own_.allocation = find_allocation(buffer, bytes);
    if (own_.allocation == nullptr) {
      fail(
          abi::ncclInvalidArgument,
          "buff=%p with size=%zu is not within one allocation of ncclMemAlloc, which is what other "
          "ranks can reach",
          buffer, bytes);
    }
    own_.local = static_cast<char*>(buffer);
    own_.bytes = bytes;
    offset_ = static_cast<size_t>(own_.local - own_.allocation->base());
    for (int rank = 0; rank < segment_.nranks() && !exchange_; ++rank) {
      if (!segment_.same_process(rank)) exchange_.emplace();
    }
  }

  void reach(const std::vector<Offer>& offers, const std::vector<FileExchange::Peer>& peers) {
    parts_.resize(offers.size());
    for (size_t rank = 0; rank < offers.size(); ++rank) {
      const Offer& offer = offers[rank];
      Window::Part& part = parts_[rank];
      part.address = offer.address;
      part.bytes = offer.bytes;
      if (!segment_.same_process(int(rank))) continue;
      part.local = reinterpret_cast<char*>(offer.address);
      part.allocation = find_allocation(part.local, part.bytes);
      if (part.allocation != nullptr) continue;
      fail(abi::ncclInvalidUsage, "the memory of %s was freed while it was being registered",
           segment_.name_of(int(rank)).c_str());
    }
    for (const FileExchange::Peer& peer : peers) {
      Window::Part& part = parts_[static_cast<size_t>(peer.rank)];
      if (!peer.file) {
        fail(abi::ncclSystemError, "this process has no descriptor left for the memory of %s",
             segment_.name_of(peer.rank).c_str());
      }
      const size_t offset = offers[static_cast<size_t>(peer.rank)].offset;
      const size_t within = offset % static_cast<size_t>(sysconf(_SC_PAGESIZE));
      part.mapping = Mapping(peer.file.get(), offset - within, within + part.bytes);
      part.local = part.mapping.get() + within;
    }
  }

  // Throws when a rank will not bring its file any more.
  void check(int rank) {
    Flag& step = comm_.step_of(rank);
    comm_.check_wait({{&step, step.load() + 1}, rank}, true);
  }

  Communicator& comm_;
  Segment& segment_;
  const int rank_;
  uint64_t number_ = 0;
  Window::Part own_;
  size_t offset_ = 0;
  std::optional<FileExchange> exchange_;
  std::vector<Window::Part> parts_;
  std::optional<Error> error_;
};

template <typename T>
Operation gather(const T& own, std::vector<T>& all) {
  Operation operation{Kind::WindowRegister, abi::ncclUint8};
  operation.send = &own;
  operation.recv = all.data();
  operation.count = sizeof own;
  return operation;
}

// While a non-blocking communicator has it, ncclCommGetAsyncError says ncclInProgress.
class Background {
 public:
  explicit Background(const Ref<Communicator>& comm) : comm_(comm) { comm_->begin_background(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  ~Background() { comm_->end_background(); }

 private:
  const Ref<Communicator> comm_;
};

void register_window(const Job& job, abi::ncclWindow_t* out, void* buffer, size_t bytes) {
  Registration registration(*job.parent, buffer, bytes);
  Operation operation{Kind::WindowRegister, abi::ncclUint8};
  operation.recv = &registration;
  ProgressEngine launch;
  launch.add(job.parent, operation);
  launch.use_sequence(job.sequence);
  if (const std::optional<Error> error = launch.run()) throw *error;
  *out = reinterpret_cast<abi::ncclWindow_t>(registration.finish().slot());
}

}  // namespace

Task run_registration(Communicator& comm, const Operation& operation) {
  Registration& registration = *static_cast<Registration*>(operation.recv);
  const size_t nranks = static_cast<size_t>(comm.nranks());

  std::vector<Offer> offers(nranks);
  const Offer offer = registration.offer();
  const Operation tell_offers = gather(offer, offers);
  Task offering = run_collective(comm, tell_offers);
  while (!offering.resume()) co_await Until{offering.blocked()};
  registration.take(offers);

  std::vector<Verdict> verdicts(nranks);
  const Verdict verdict = registration.verdict();
  const Operation tell_verdicts = gather(verdict, verdicts);
  Task judging = run_collective(comm, tell_verdicts);
  while (!judging.resume()) co_await Until{judging.blocked()};
  for (int rank = 0; rank < comm.nranks(); ++rank) {
    registration.note(rank, verdicts[static_cast<size_t>(rank)]);
  }
}

Job registration_job(abi::ncclWindow_t* out, const Ref<Communicator>& comm, void* buffer,
                     size_t bytes) {
  Job job;
  job.parent = comm;
  job.blocking = comm->settings().blocking;
  const auto background = job.blocking ? nullptr : std::make_shared<Background>(comm);
  job.work = [out, buffer, bytes, background](const Job& self) {
    const JobGuard busy(
        self.parent);  // out is the caller's to free when the communicator has ended
    try {
      register_window(self, out, buffer, bytes);
    } catch (...) {
      if (background != nullptr) self.parent->fail(current_error());  // none else would hear of it
      throw;
    }
  };
  return job;
}

}  // namespace hostnccl
