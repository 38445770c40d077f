// DeviceCommunicator: owns an ncclDevComm, what a kernel needs to communicate itself: barriers,
// signals, and resource memory that the ranks of its LSA team can load from and store to.
//
// The struct has the layout of the headers that the kernels are compiled with. Its resource memory
// takes a place among the windows of each rank, so what comm/window.h says about their order counts
// for device communicators, too: one that is deleted without close() stays until its communicator
// is closed.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "abi/nccl_device_types.h"
#include "comm/communicator.h"

namespace pynccl {

struct DeviceLayout;  // of the structs in the headers of a version

class DeviceCommunicator {
 public:
  struct Request {
    int version = 0;  // of the headers that the kernels are compiled with; 0: the library's
    ncclDevCommRequirements_t fields;  // its lists and its head are not read
    std::vector<std::size_t> buffers;  // bytes of resource memory
    std::vector<ncclTeam> teams;       // that need multimem
  };

  // A pending one; make() makes it. Throws std::invalid_argument for a version that the library
  // does not serve, and for a field that the version does not have.
  DeviceCommunicator(std::shared_ptr<Communicator> communicator, const Request& request);
  ~DeviceCommunicator();
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  // Makes those of several communicators of one library, where one thread has several ranks. Waits
  // for the other ranks, also of a non-blocking communicator.
  static void make(const std::vector<DeviceCommunicator*>& made);
  void cancel();  // it will not be made, or is not open any more
  // Waits for the work on a GPU. Closing twice is allowed. Other ranks are not needed.
  void close();

  // They throw std::invalid_argument where it is closed or not made yet.
  const void* data() const;
  // A copy of the struct that kernels of its device can read.
  const void* device_data();
  // The address of a buffer of resource memory in an LSA rank's memory.
  const void* buffer(std::size_t index, int lsa_rank) const;
  ncclDevResourceHandle buffer_handle(std::size_t index) const;
  const void* multimem(std::size_t team) const;  // null where there is none
  // Throws std::invalid_argument where a kernel was compiled with another version.
  void check_version(int kernel_version) const;

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  int version() const { return version_; }
  std::size_t nbytes() const { return nbytes_; }
  const ncclTeam& lsa() const { return lsa_; }
  const std::vector<std::size_t>& buffer_sizes() const { return sizes_; }
  std::size_t teams() const { return passed_->teams.size(); }
  bool is_open() const { return state_ == State::kOpen && !closed(); }
  bool closed() const { return state_ == State::kClosed || communicator_->closed(); }

 private:
  enum class State { kPending, kOpen, kClosed };

  // What NCCL reads and writes; for a non-blocking communicator after the call has returned.
  struct Passed {
    ncclDevCommRequirements_t requirements;
    std::vector<std::byte> small_requirements;  // in the layout of 2.28
    std::vector<ncclDevResourceRequirements_t> resources;
    std::vector<ncclTeamRequirements_t> teams;
    std::vector<ncclDevResourceHandle> handles;
    std::vector<ncclMultimemHandle> multimem;
    std::vector<std::byte> dev_comm;
  };

  void choose_layout();
  void check_fields(const ncclDevCommRequirements_t& fields) const;
  void pass(const Request& request);
  void begin();
  void finish();
  void check_open() const;
  void release_copy() noexcept;

  std::shared_ptr<Communicator> communicator_;
  int version_;
  bool runtime_version_ = false;  // the library is newer than the layouts
  const DeviceLayout* layout_ = nullptr;
  std::size_t nbytes_ = 0;
  std::vector<std::size_t> sizes_;
  std::shared_ptr<Passed> passed_ = std::make_shared<Passed>();
  ncclTeam lsa_{};
  State state_ = State::kPending;
  bool counted_ = false;  // among the communicator's windows
  std::mutex mutex_;
  void* copy_ = nullptr;  // of the struct, in memory of the device
  int copy_device_ = 0;
};

// What the loaded library says of a communicator (ncclCommQueryProperties), with the size of the
// struct of that version: fields after it are not set.
struct CommunicatorProperties {
  ncclCommProperties_t value;
  std::size_t size;  // bytes of it that are set
};
CommunicatorProperties query_properties(Communicator& communicator);

// The teams of a communicator. They throw std::invalid_argument where it is closed, and NcclFailure
// where NCCL has none.
enum class TeamKind { kWorld, kLsa, kRail };
ncclTeam team_of(Communicator& communicator, TeamKind kind);
int rank_to_world(Communicator& communicator, const ncclTeam& team, int rank);
int rank_to_lsa(Communicator& communicator, const ncclTeam& team, int rank);

}  // namespace pynccl
