// NewFile: atomically replaces a file, safely in directories to which other users may write. It
// creates the file under a new, unpredictable name, and then renames it. Links are not followed.
#pragma once

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace common {

class NewFile {
 public:
  /// Throws std::system_error if a link, directory or device of that name exists.
  /// @param mode the permissions before the umask applies
  explicit NewFile(std::string path, mode_t mode = 0644) : path_(std::move(path)) {
    struct stat info;
    if (lstat(path_.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
      errno = S_ISLNK(info.st_mode) ? ELOOP : S_ISDIR(info.st_mode) ? EISDIR : EEXIST;
      throw_error(path_);
    }
    std::uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number) throw_error("getrandom");
    char suffix[24];
    std::snprintf(suffix, sizeof suffix, ".%016llx", static_cast<unsigned long long>(number));
    temporary_ = path_ + suffix;
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    descriptor_ = open(temporary_.c_str(), kFlags, mode);
    if (descriptor_ < 0) throw_error(path_);
  }
  ~NewFile() {
    close(descriptor_);
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::string& path() const { return path_; }

  void write_all(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_error(path_);
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  /// Renames the file to its final name. Without this call it is removed.
  void publish() {
    if (rename(temporary_.c_str(), path_.c_str()) != 0) throw_error(path_);
    temporary_.clear();
  }

 private:
  [[noreturn]] static void throw_error(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
  }

  std::string path_, temporary_;
  int descriptor_ = -1;
};

}  // namespace common
