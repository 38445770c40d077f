// Library: a loaded NCCL library, with its function table and the table of the matching stream
// calls. For libnccl.so.2 these are the CUDA driver's (libcuda.so.1). A library that exports stream
// calls itself (libhostnccl.so) is its own driver. No code above this class depends on the
// difference.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "nccl/failure.h"
#include "nccl/table.h"

namespace pynccl {

enum class Memory { kHost, kDevice };

class Library {
 public:
  // Loads the library at path, a file or a SONAME for the dynamic linker. Throws LibraryNotFound. A
  // library stays loaded until the process ends, and the same file returns the same Library.
  static std::shared_ptr<Library> open(const std::string& path);

  const std::string& path() const { return path_; }
  int version() const { return version_; }  // as by ncclGetVersion: 23203 is 2.32.3
  Memory memory() const { return memory_; }

  const NcclTable& nccl_table() const { return nccl_; }

  // Returns one entry of the table. Throws MissingFunction if this library lacks it.
  template <auto Member>
  auto nccl() const {
    const auto function = nccl_.*Member;
    if (!function) [[unlikely]]
      throw_missing(reinterpret_cast<const void*>(&(nccl_.*Member)));
    return function;
  }

  // Whether the library reports failed queued work (hostWorkFailure), so that waits for it fail.
  // With other libraries, waits end as if the work had completed.
  bool reports_failed_work() const { return work_failure_ != nullptr; }
  struct FailedWork {
    ncclResult_t result;
    std::string text;
    const void* origin;  // the communicator's handle, or the argument of hostFailFunction()
  };
  // The failed work that caused the last failure of a stream call on this thread, if any.
  std::optional<FailedWork> failed_work() const;
  // Called by a function that a stream of this library runs, to mark it as failed.
  void fail_function(const std::string& text, const void* origin) const;

  // Look-ups by name, for extensions: any function that the file exports, and the stream calls of
  // driver_functions.inc by their names in cuda.h. They return null for other names.
  // driver_symbol() throws as driver() does.
  void* symbol(const char* name) const;
  void* driver_symbol(std::string_view name) const;

  // The stream calls. Throws LibraryNotFound without a driver.
  const DriverTable& driver() const {
    if (!driver_ready_.load(std::memory_order_acquire)) [[unlikely]]
      load_driver();
    return driver_;
  }
  // The file that provides the stream calls. Throws as driver() does.
  const std::string& driver_path() const {
    driver();
    return driver_path_;
  }

  int driver_version() const;  // 13000 for CUDA 13.0. Throws as driver() does, or DriverFailure

  // Return a copy of a struct with the size and version of this library's nccl.h. Throw
  // std::invalid_argument if a field is set that this library is too old for.
  ncclConfig_t fit(const ncclConfig_t& config) const;
  ncclCollConfig_t fit(const ncclCollConfig_t& config) const;
  ncclSimInfo_t fit(const ncclSimInfo_t& info) const;
  ncclDevCommRequirements_t fit(const ncclDevCommRequirements_t& requirements) const;

 private:
  Library(std::string path, void* handle);

  [[noreturn]] void throw_missing(const void* entry) const;
  void load_driver() const;

  std::string path_;
  void* handle_;
  NcclTable nccl_;
  int version_ = 0;
  Memory memory_ = Memory::kDevice;
  int (*work_failure_)(ncclResult_t*, const char**, const void**) = nullptr;
  mutable std::once_flag driver_once_;
  mutable std::atomic<bool> driver_ready_ = false;
  mutable DriverTable driver_;
  mutable std::string driver_path_;
  mutable std::atomic<int> driver_version_ = 0;
};

// "2.32.3" for 23203; "2.8.4" for 2804, the form before NCCL 2.9.
std::string version_text(int version);

// The file of a library loaded in this process whose name begins with soname, else "".
std::string loaded_path(std::string_view soname);

// The end of an exception's text: the source location, with the called function if the text does
// not begin with it.
std::string place_text(const char* file, int line, const char* function = nullptr);
// NCCL's description of the error, for the text of an exception.
std::string failure_text(const Library& library, ncclResult_t result, const char* function,
                         ncclComm_t comm, int rank);
[[noreturn]] void throw_nccl(const Library& library, ncclResult_t result, const char* function,
                             ncclComm_t comm, int rank, const char* file, int line);
[[noreturn]] void throw_driver(const Library& library, CUresult result, const char* function,
                               const char* file, int line);

}  // namespace pynccl

// NCCL_CHECK(library, comm, rank, ncclSend, (arguments...)): calls the function and throws
// NcclFailure unless it succeeds.
#define NCCL_CHECK(library, comm, rank, function, args)                              \
  do {                                                                               \
    const ncclResult_t result_ = (library).nccl<&NcclTable::function>() args;        \
    if (!pynccl::succeeded(result_)) [[unlikely]]                                    \
      throw_nccl((library), result_, #function, (comm), (rank), __FILE__, __LINE__); \
  } while (false)

// NCCL_CALL_NOTHROW(library, ncclCommAbort, (comm)): calls the function and returns its result, or
// ncclInvalidUsage if the library lacks it.
#define NCCL_CALL_NOTHROW(library, function, args) \
  ((library).nccl_table().function ? (library).nccl_table().function args : ncclInvalidUsage)

#define DRIVER_CHECK(library, function, args)                               \
  do {                                                                      \
    const CUresult result_ = (library).driver().function args;              \
    if (result_ != CUDA_SUCCESS) [[unlikely]]                               \
      throw_driver((library), result_, "cu" #function, __FILE__, __LINE__); \
  } while (false)
