// DeviceCommunicator: owns an ncclDevComm, which a kernel needs to communicate: barriers, signals,
// and resource memory that the ranks of its LSA team can load from and store to.
//
// The struct has the layout of the headers that the kernels are compiled with. Its resource memory
// counts as a window, so the rules of comm/window.h for the order of windows apply: a device
// communicator that is deleted without close() stays until its communicator is closed.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "abi/nccl_device_types.h"
#include "comm/communicator.h"

namespace pynccl {

struct DeviceLayout;  // the struct layouts of an NCCL version

class DeviceCommunicator {
 public:
  struct Request {
    int version = 0;  // of the headers that the kernels are compiled with; 0: the library's
    ncclDevCommRequirements_t fields;  // its lists and header are ignored
    std::vector<std::size_t> buffers;  // bytes of resource memory
    std::vector<ncclTeam> teams;       // the teams that need multimem
  };

  // A pending device communicator, which create() creates. Throws std::invalid_argument for a
  // version that the library does not support, and for a field that the version lacks.
  DeviceCommunicator(std::shared_ptr<Communicator> communicator, const Request& request);
  ~DeviceCommunicator();

  // Creates device communicators of one library, several if one thread has several ranks. Waits for
  // the other ranks, even of a non-blocking communicator.
  static void create(const std::vector<DeviceCommunicator*>& device_comms);
  void cancel();  // marks it as closed without destroying it
  // Waits for the work on a GPU, but not for other ranks. Closing twice is allowed.
  void close();

  // These functions throw std::invalid_argument if it is closed or still pending.
  const void* data() const;
  // A copy of the struct that kernels on its device can read.
  const void* device_data();
  // The address of a buffer of resource memory in an LSA rank's memory.
  const void* buffer(std::size_t index, int lsa_rank) const;
  ncclDevResourceHandle buffer_handle(std::size_t index) const;
  const void* multimem(std::size_t team) const;  // null if unsupported

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

  // The arguments that NCCL reads and writes; for a non-blocking communicator even after the call
  // has returned.
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
  void check_created() const;
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
  std::mutex mutex_;      // guards the following
  void* copy_ = nullptr;  // the struct in device memory
  int copy_device_ = 0;
};

// The result of ncclCommQueryProperties. Fields that the loaded version lacks are unset.
ncclCommProperties_t query_properties(Communicator& communicator);

// The teams of a communicator. Throw std::invalid_argument if it is closed, and NcclFailure if NCCL
// has no such team.
enum class TeamKind { kWorld, kLsa, kRail };
ncclTeam team_of(Communicator& communicator, TeamKind kind);
void check_lsa_rank(const ncclTeam& lsa, int lsa_rank);  // throws std::invalid_argument
int rank_to_world(Communicator& communicator, const ncclTeam& team, int rank);
int rank_to_lsa(Communicator& communicator, const ncclTeam& team, int rank);

}  // namespace pynccl
