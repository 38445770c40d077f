#include "watch/flight_dump.h"

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "comm/communicator.h"
#include "comm/observer.h"
#include "common/new_file.h"
#include "common/signals_blocked.h"
#include "nccl/wait.h"
#include "watch/json.h"
#include "watch/process_identity.h"

namespace pynccl {
namespace {

constexpr int kDumpFormat = 1;
constexpr double kWriteSeconds = 2;  // how long a failure waits for the dump

using json::array;
using json::hexadecimal;
using json::hexadecimal_or_null;
using json::object;

std::string record_json(const FlightRecord& r, bool done, std::int64_t epoch) {
  return object({
      {"sequence", json::of(r.sequence)},
      {"operation", json::of(kind_name(r.kind))},
      {"number", json::or_null(r.number != 0, r.number)},
      {"dtype", json::of(dtype_name(r.dtype))},
      {"count", json::of(r.count)},
      {"op", json::or_null(reduces(r.kind), op_name(r.op))},
      {"root", json::or_null(has_root(r.kind), r.root_or_peer)},
      {"peer", json::or_null(has_peer(r.kind), r.root_or_peer)},
      {"state", json::of(r.state_name(done))},
      {"time_created_ns", json::of(r.issued + epoch)},
      {"stream", hexadecimal(reinterpret_cast<std::uintptr_t>(r.stream))},
      {"fingerprint", hexadecimal(r.fingerprint)},
  });
}

std::string communicator_json(Deadlines& deadlines, std::int64_t epoch) {
  deadlines.update();
  const FlightRecorder& recorder = deadlines.recorder();
  const FlightIdentity identity = recorder.identity();
  const std::string failure = recorder.failure();
  const std::int64_t limit = deadlines.own_limit();
  return object({
      {"id", hexadecimal(identity.id)},
      {"joined", hexadecimal_or_null(identity.joined)},
      {"parent", hexadecimal_or_null(identity.parent)},
      {"name", json::or_null(!identity.name.empty(), identity.name)},
      {"creator", json::of(identity.creator)},
      {"rank", json::or_null(identity.rank >= 0, identity.rank)},
      {"nranks", json::or_null(identity.nranks > 0, identity.nranks)},
      {"device", json::or_null(identity.device >= 0, identity.device)},
      {"timeout", json::or_null(limit != FlightRecord::kNoLimit, static_cast<double>(limit) / 1e9)},
      {"failure", json::or_null(!failure.empty(), failure)},
      {"calls", array(deadlines.calls(), ", ",
                      [&](const Deadlines::Entry& call) {
                        return object({{"function", json::of(call.function)},
                                       {"time_created_ns", json::of(call.began + epoch)}});
                      })},
      {"collectives", json::of(recorder.collectives())},
      {"records", array(recorder.read_all(), ",\n    ",
                        [&](const FlightRecord& record) {
                          return record_json(record, record.sequence <= deadlines.done(), epoch);
                        })},
  });
}

class DumpSink final : public Observer {
 public:
  void created(Communicator&) override { FlightDump::listen(); }
  void failed(const std::string& text) override {
    if (FlightDump::default_path())  // a file system may not answer
      run_within(kWriteSeconds, [text] { FlightDump::write_default(text); });
  }
  // The cause may be a communicator, whose failure is then dumped.
  void driver_failed() override {
    if (!FlightDump::default_path()) return;
    for (const auto& communicator : OpenCommunicators::communicators())
      communicator->record_async_failure();
  }
};

sem_t requested;  // posted by the signal handler to request a dump
std::atomic<pid_t> listening = 0;

void request(int) { sem_post(&requested); }

void write_requested() {
  for (;;)
    if (sem_wait(&requested) == 0) FlightDump::write_default("SIGUSR2");
}

}  // namespace

std::string FlightDump::json(const std::string& reason) {
  const std::int64_t epoch = epoch_of_clock();
  const int rank = process_rank();
  return object({
             {"format", json::of("pynccl flight record")},
             {"version", json::of(kDumpFormat)},
             {"reason", json::of(reason)},
             {"host", json::of(host_name())},
             {"pid", json::of(getpid())},
             {"rank", json::or_null(rank >= 0, rank)},
             {"time_ns", json::of(coarse_time() + epoch)},
             {"communicators",
              array(OpenCommunicators::all(), ",\n  ",
                    [&](const auto& one) { return communicator_json(*one.deadlines, epoch); })},
         }) +
         "\n";
}

void FlightDump::write(const std::string& path, const std::string& reason) {
  const std::string text = json(reason);
  common::NewFile file(path);
  file.write_all(text);
  file.publish();
}

std::optional<std::string> FlightDump::default_path() {
  const char* prefix = std::getenv("PYNCCL_FLIGHT_FILE");
  if (!prefix || !*prefix) return std::nullopt;
  const int rank = process_rank();
  return prefix +
         (rank >= 0 ? std::to_string(rank) : std::string("pid") + std::to_string(getpid()));
}

void FlightDump::write_default(const std::string& reason) noexcept {
  try {
    if (const auto path = default_path()) write(*path, reason);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pynccl: the flight record was not written: %s\n", error.what());
  }
}

void FlightDump::observe() { Observers::add(*new DumpSink); }

// A forked child inherits the handler, but not the thread.
void FlightDump::listen() {
  const pid_t self = getpid();
  if (!default_path() || listening.exchange(self) == self) return;
  struct sigaction action{};
  sigaction(SIGUSR2, nullptr, &action);
  const bool own = action.sa_handler == &request;
  if (!own && action.sa_handler != SIG_DFL) return;
  sem_init(&requested, 0, 0);
  action.sa_handler = &request;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
  const common::SignalsBlocked blocked;  // inherited by the thread
  std::thread(&write_requested).detach();
}

}  // namespace pynccl
