// The destinations of entries: a trace and a recording, in the same format (docs/trace.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/new_file.h"
#include "watch/trace_entry.h"

namespace pynccl {

class Deadlines;

// The tables that the numbers in entries refer to.
class TraceTables {
 public:
  std::uint32_t add_communicator(const std::shared_ptr<Deadlines>& deadlines, const char* provider);
  std::uint64_t add_name(const std::string& text);  // the same number for the same text
  void update();                                    // reads names of communicators again

  const std::vector<std::string>& communicators() const { return communicators_; }  // JSON
  const std::vector<std::string>& names() const { return names_; }

 private:
  struct Source {
    std::weak_ptr<Deadlines> deadlines;
    const char* provider;
  };
  std::vector<Source> sources_;
  std::vector<std::string> communicators_;
  std::vector<std::string> names_;
};

// Encodes entries.
class TraceWriter {
 public:
  explicit TraceWriter(bool timed);

  void write(const TraceEntry& entry) {
    entries_.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  void drop() { ++dropped_; }
  // Returns the bytes since the last call. New table entries precede the entries that use them, so
  // that any prefix of a file can be read.
  std::string take(const TraceTables& tables);
  std::string take_last(const TraceTables& tables);

 private:
  void write_block(char type, std::string_view text);

  std::string bytes_;
  std::string entries_;
  std::uint64_t dropped_ = 0;
  std::vector<std::string> communicators_;
  std::size_t names_ = 0;
};

// A trace of a limited number of operations.
class TraceMemory {
 public:
  explicit TraceMemory(std::uint64_t operations) : writer_(true), left_(operations) {}

  // Returns false if it is full.
  bool reserve() {
    if (left_ == 0) return writer_.drop(), false;
    return --left_, true;
  }
  TraceWriter& writer() { return writer_; }

 private:
  TraceWriter writer_;
  std::uint64_t left_;
};

// A recording of a limited number of bytes.
class TraceFile {
 public:
  TraceFile(std::string path, std::uint64_t bytes)
      : path_(std::move(path)), writer_(false), left_(bytes) {}

  void write(const TraceEntry& entry);
  void flush(const TraceTables& tables) noexcept;
  std::string finish(const TraceTables& tables);  // see Trace::stop_recording()

 private:
  void write_all(std::string_view bytes);

  const std::string path_;
  std::string name_;  // once the file exists
  std::unique_ptr<common::NewFile> file_;
  TraceWriter writer_;
  std::uint64_t left_;
  bool used_ = false;
  int error_ = 0;
};

}  // namespace pynccl
