#include "watch/trace_output.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "comm/deadlines.h"
#include "nccl/clock.h"
#include "watch/json.h"
#include "watch/process_identity.h"

namespace pynccl {
namespace {

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

TraceWriter::TraceWriter(bool timed) : bytes_(kMagic) { write_block(kHeader, header(timed)); }

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
  if (left_ < sizeof entry || error_ != 0) return writer_.drop();
  left_ -= sizeof entry;
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
  if (used_ && error_ == 0) {
    write_all(writer_.take_last(tables));
  }
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

}  // namespace pynccl
