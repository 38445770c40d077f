// The addresses of the memory of other ranks in a window.
#include "core/device_communicator.h"
#include "core/window.h"

namespace pynccl {

void Window::check_offset(int rank, std::size_t offset) const {
  if (offset >= nbytes_of(rank))
    throw std::invalid_argument("offset: " + std::to_string(offset) +
                                " is not inside the window of rank " + std::to_string(rank) +
                                ", which has " + std::to_string(nbytes_of(rank)) + " bytes");
}

// NCCL compares an offset with the size of the own memory, so it is added here.
void* Window::lsa_pointer(int lsa_rank, std::size_t offset) const {
  const ncclWindow_t window = handle();
  const ncclTeam lsa = team_of(*communicator_, TeamKind::kLsa);
  if (lsa_rank < 0 || lsa_rank >= lsa.nRanks)
    throw std::invalid_argument("lsa_rank: " + std::to_string(lsa_rank) +
                                " is out of range for an LSA team of " +
                                std::to_string(lsa.nRanks) + " ranks");
  check_offset(rank_to_world(*communicator_, lsa, lsa_rank), offset);
  if (!window) return nullptr;
  void* pointer = nullptr;
  const Communicator::Use comm(*communicator_);
  NCCL_CHECK(communicator_->library(), comm, communicator_->known_rank(), ncclGetLsaDevicePointer,
             (window, 0, lsa_rank, &pointer));
  return pointer ? static_cast<char*>(pointer) + offset : nullptr;
}

void* Window::peer_pointer(int rank, std::size_t offset) const {
  const ncclWindow_t window = handle();
  check_offset(rank, offset);
  if (!window) return nullptr;
  void* pointer = nullptr;
  const Communicator::Use comm(*communicator_);
  NCCL_CHECK(communicator_->library(), comm, communicator_->known_rank(), ncclGetPeerDevicePointer,
             (window, 0, rank, &pointer));
  return pointer ? static_cast<char*>(pointer) + offset : nullptr;
}

void* Window::multimem_pointer(std::size_t offset) const {
  const ncclWindow_t window = handle();
  check_offset(communicator_->rank(), offset);
  if (!window) return nullptr;
  void* pointer = nullptr;
  const Communicator::Use comm(*communicator_);
  NCCL_CHECK(communicator_->library(), comm, communicator_->known_rank(),
             ncclGetLsaMultimemDevicePointer, (window, 0, &pointer));
  return pointer ? static_cast<char*>(pointer) + offset : nullptr;
}

}  // namespace pynccl
