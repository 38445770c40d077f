#include "hostnccl/segment/peer_memory.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hostnccl/base/process.h"

namespace hostnccl {
namespace {

constexpr size_t kBlock = size_t{64} << 20;  // read between two checks for a failure

}  // namespace

AccessEpoch::AccessEpoch(Segment& segment, int rank, const WindowSet* windows)
    : segment_(segment), windows_(windows), accessing_(segment.rank_state(rank).accessing) {
  accessing_.store(1, std::memory_order_seq_cst);
  try {
    check();
  } catch (...) {
    accessing_.store(0, std::memory_order_release);
    throw;
  }
}

AccessEpoch::~AccessEpoch() { accessing_.store(0, std::memory_order_release); }

void AccessEpoch::check() const {
  if (segment_.failed()) throw segment_.failure();
}

const char* AccessEpoch::local_address(int peer, uint64_t windows, uint64_t address,
                                       size_t bytes) const {
  if (segment_.same_process(peer)) return reinterpret_cast<const char*>(address);
  const bool same = windows_ != nullptr && windows_->identity() == windows;
  return same ? windows_->local_address(peer, address, bytes) : nullptr;
}

void AccessEpoch::read(int peer, uint64_t windows, uint64_t address, void* to, size_t bytes) const {
  const char* const local = local_address(peer, windows, address, bytes);
  for (size_t done = 0; done < bytes;) {
    const size_t block = std::min(kBlock, bytes - done);
    char* target = static_cast<char*>(to) + done;
    if (local != nullptr) {
      std::memcpy(target, local + done, block);
    } else if (read_process(segment_.process(peer).pid, address + done, target, block) != block) {
      const int error = errno;
      check();
      if (error == ESRCH || !is_alive(segment_.process(peer))) {
        fail(abi::ncclRemoteError, "%s died while its memory was being read",
             segment_.name_of(peer).c_str());
      }
      errno = error;
      fail_errno("reading %zu bytes at %#llx of %s", block,
                 static_cast<unsigned long long>(address) + done, segment_.name_of(peer).c_str());
    }
    done += block;
    if (done < bytes) check();
  }
}

const void* AccessEpoch::view(int peer, uint64_t windows, uint64_t address, void* scratch,
                              size_t bytes) const {
  if (const char* local = local_address(peer, windows, address, bytes)) return local;
  read(peer, windows, address, scratch, bytes);
  return scratch;
}

ExposureEpoch::~ExposureEpoch() {
  if (!open_) return;
  for (int rank = 0; rank < segment_.nranks(); ++rank) {
    if (rank == rank_ || !segment_.same_process(rank)) continue;
    while (segment_.rank_state(rank).accessing.load(std::memory_order_seq_cst) != 0) sched_yield();
  }
}

}  // namespace hostnccl
