#include "nccl/library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>

#include "nccl/interrupt.h"

namespace pynccl {
namespace {

struct EntryPoint {
  const char* name;
  int since;
  std::size_t offset;  // of the entry in NcclTable
};

constexpr EntryPoint kEntryPoints[] = {
#define FUNCTION(since, result, name, ...) {#name, since, offsetof(NcclTable, name)},
#include "abi/c_params.inc"
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"
};

template <class Function>
void resolve(Function& entry, void* handle, const char* symbol) {
  entry = reinterpret_cast<Function>(dlsym(handle, symbol));
}

void* open_or_throw(const char* path) {
  // RTLD_LOCAL keeps the symbols of two loaded NCCLs apart.
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw LibraryNotFound(dlerror());
  return handle;
}

std::string path_of(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && *map->l_name) return map->l_name;
  return {};
}

// Truncates a versioned struct to the fields that a library knows: call field() for each field in
// order, then result().
template <class Config>
class Fit {
 public:
  Fit(const Config& config, const Library& library) : Fit(config, library, library.version()) {}
  // For kernels compiled with another version.
  Fit(const Config& config, const Library& library, int version)
      : config_(config), library_(library), version_(version) {}

  template <class Field>
  void field(int since, Field Config::* member, std::size_t offset, const char* name) {
    if (version_ >= since) return;
    size_ = std::min(size_, offset);
    if (config_.*member != Config().*member)
      throw std::invalid_argument(std::string(name) + " needs NCCL " + version_text(since) +
                                  (version_ == library_.version()
                                       ? "; the loaded " + library_.path() + " is "
                                       : std::string(", the version of the struct is ")) +
                                  version_text(version_));
  }

  Config result() const {
    Config fitted = config_;
    fitted.size = (size_ + alignof(Config) - 1) / alignof(Config) * alignof(Config);
    fitted.version = static_cast<unsigned>(
        version_ == library_.version() ? std::min(version_, kVersion) : version_);
    return fitted;
  }

 private:
  const Config& config_;
  const Library& library_;
  const int version_;
  std::size_t size_ = sizeof(Config);
};

}  // namespace

std::shared_ptr<Library> Library::open(const std::string& path) {
  static std::mutex mutex;
  static auto& libraries = *new std::map<std::string, std::shared_ptr<Library>>;  // never destroyed
  const std::lock_guard lock(mutex);
  void* handle = open_or_throw(path.c_str());
  const std::string file = path_of(handle);
  auto& library = libraries[file];
  if (!library) {
    library.reset(new Library(file, handle));
    Interrupt::install(library->symbol("hostSetInterruptCheck"));
  }
  return library;
}

Library::Library(std::string path, void* handle) : path_(std::move(path)), handle_(handle) {
#define FUNCTION(since, result, name, ...) resolve(nccl_.name, handle_, #name);
#include "abi/c_params.inc"
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"
  if (!nccl_.ncclGetVersion || nccl_.ncclGetVersion(&version_) != ncclSuccess)
    throw LibraryNotFound(path_ + " is not NCCL: ncclGetVersion is missing or fails");
  if (version_ < kOldestVersion)
    throw LibraryNotFound(path_ + " is NCCL " + version_text(version_) + "; pynccl needs " +
                          version_text(kOldestVersion) + " or newer");
  if (dlsym(handle_, "hostStreamCreateWithPriority")) memory_ = Memory::kHost;
  resolve(work_failure_, handle_, "hostWorkFailure");
}

std::optional<Library::FailedWork> Library::failed_work() const {
  FailedWork failed;
  const char* text = nullptr;
  if (!work_failure_ || !work_failure_(&failed.result, &text, &failed.origin)) return std::nullopt;
  failed.text = text;
  return failed;
}

void Library::fail_function(const std::string& text, const void* origin) const {
  using Fail = void (*)(ncclResult_t, const char*, const void*);
  reinterpret_cast<Fail>(symbol("hostFailFunction"))(ncclInternalError, text.c_str(), origin);
}

void Library::load_driver() const {
  std::call_once(driver_once_, [this] {
    const bool own = memory_ == Memory::kHost;
    void* handle = own ? handle_ : open_or_throw("libcuda.so.1");
    driver_path_ = path_of(handle);
    const char* missing = nullptr;
#define FUNCTION(symbol, result, name, ...)                    \
  resolve(driver_.name, handle, own ? "host" #name : #symbol); \
  if (!driver_.name) missing = own ? "host" #name : #symbol;
#include "abi/c_params.inc"
#include "abi/driver_functions.inc"
#include "abi/undef.inc"
    if (missing) throw LibraryNotFound(driver_path_ + " has no " + missing);
    const CUresult result = driver_.Init(0);
    if (result != CUDA_SUCCESS) {
      const char* name = nullptr;
      driver_.GetErrorName(result, &name);
      throw LibraryNotFound(driver_path_ + ": cuInit failed: " + (name ? name : "unknown error"));
    }
    driver_ready_.store(true, std::memory_order_release);
  });
}

int Library::driver_version() const {
  if (const int known = driver_version_.load(std::memory_order_relaxed)) return known;
  int version = 0;
  DRIVER_CHECK(*this, DriverGetVersion, (&version));
  driver_version_.store(version, std::memory_order_relaxed);
  return version;
}

void* Library::symbol(const char* name) const { return dlsym(handle_, name); }

void* Library::driver_symbol(std::string_view name) const {
  const DriverTable& table = driver();
#define FUNCTION(symbol, result, entry, ...) \
  if (name == #symbol || name == "cu" #entry) return reinterpret_cast<void*>(table.entry);
#include "abi/c_params.inc"
#include "abi/driver_functions.inc"
#include "abi/undef.inc"
  return nullptr;
}

void Library::throw_missing(const void* entry) const {
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(entry) -
                                               reinterpret_cast<const char*>(&nccl_));
  const auto* fact = std::find_if(std::begin(kEntryPoints), std::end(kEntryPoints),
                                  [&](const EntryPoint& e) { return e.offset == offset; });
  throw MissingFunction(std::string(fact->name) + " needs NCCL " + version_text(fact->since) +
                        "; the loaded " + path_ + " (version " + version_text(version_) +
                        ") does not have it");
}

ncclConfig_t Library::fit(const ncclConfig_t& config) const {
  Fit fit(config, *this);
#define FIELD(since, type, name, attribute, value) \
  fit.field(since, &ncclConfig_t::name, offsetof(ncclConfig_t, name), "config." #attribute);
#include "abi/config_fields.inc"
#undef FIELD
  return fit.result();
}

ncclCollConfig_t Library::fit(const ncclCollConfig_t& config) const {
  Fit fit(config, *this);
#define FIELD(since, type, name, attribute, value) \
  fit.field(since, &ncclCollConfig_t::name, offsetof(ncclCollConfig_t, name), "config." #attribute);
#include "abi/coll_config_fields.inc"
#undef FIELD
  return fit.result();
}

ncclSimInfo_t Library::fit(const ncclSimInfo_t& info) const { return Fit(info, *this).result(); }

ncclDevCommRequirements_t Library::fit(const ncclDevCommRequirements_t& requirements) const {
  using Requirements = ncclDevCommRequirements_t;
  // A version set by the caller is that of the kernels. NCCL compares it with its own.
  const int given = static_cast<int>(requirements.version);
  Fit fit(requirements, *this, given == kDeviceVersion ? version() : given);
#define FIELD(since, type, name, ...) \
  fit.field(since, &Requirements::name, offsetof(Requirements, name), "reqs." #name);
#include "abi/device_requirements_fields.inc"
#undef FIELD
  return fit.result();
}

std::string version_text(int version) {
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

std::string loaded_path(std::string_view soname) {
  struct Search {
    std::string_view soname;
    std::string found;
  } search{soname, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& s = *static_cast<Search*>(data);
        const std::string_view path = info->dlpi_name ? info->dlpi_name : "";
        const auto slash = path.rfind('/');
        const auto file = slash == std::string_view::npos ? path : path.substr(slash + 1);
        if (!file.starts_with(s.soname)) return 0;
        s.found = path;
        return 1;
      },
      &search);
  return search.found;
}

std::string place_text(const char* file, int line, const char* function) {
  const char* slash = std::strrchr(file, '/');  // the text names the file, not the build folder
  const std::string within = function ? std::string(function) + ", " : std::string();
  return " [" + within + (slash ? slash + 1 : file) + ":" + std::to_string(line) + "]";
}

std::string failure_text(const Library& library, ncclResult_t result, const char* function,
                         ncclComm_t comm, int rank) {
  const NcclTable& nccl = library.nccl_table();
  std::string text = std::string(function) + " failed";
  if (rank >= 0) text += " on rank " + std::to_string(rank);
  if (nccl.ncclGetErrorString) text += std::string(": ") + nccl.ncclGetErrorString(result);
  if (nccl.ncclGetLastError) {
    const char* last = nccl.ncclGetLastError(comm);
    if (last && *last) text += std::string(": ") + last;
  }
  return text;
}

void throw_nccl(const Library& library, ncclResult_t result, const char* function, ncclComm_t comm,
                int rank, const char* file, int line) {
  throw NcclFailure(result, function, rank,
                    failure_text(library, result, function, comm, rank) + place_text(file, line));
}

void throw_driver(const Library& library, CUresult result, const char* function, const char* file,
                  int line) {
  if (const auto failed = result == CUDA_ERROR_UNKNOWN ? library.failed_work() : std::nullopt) {
    const bool launched = std::strcmp(function, "cuGraphLaunch") == 0;
    const char* what = launched ? "the launch of a graph" : "work queued on the stream";
    throw WorkFailure(
        failed->result, function,
        std::string(what) + " failed: " + failed->text + place_text(file, line, function),
        failed->origin);
  }
  const DriverTable& driver = library.driver();
  std::string text = std::string(function) + " failed";
  const char* name = nullptr;
  const char* meaning = nullptr;
  driver.GetErrorName(result, &name);  // null if the driver does not know the error
  driver.GetErrorString(result, &meaning);
  if (name) text += std::string(": ") + name;
  if (meaning) text += std::string(" (") + meaning + ")";
  throw DriverFailure(result, function, text + place_text(file, line));
}

}  // namespace pynccl
