#include "comm/device_communicator.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "comm/device_memory.h"
#include "comm/stream.h"
#include "nccl/device.h"

namespace pynccl {

// From 2.29 on, NCCL only appends to ncclDevCommRequirements, and supports older headers.
struct DeviceLayout {
  int since;
  std::size_t requirements;  // sizes in bytes
  std::size_t dev_comm;
  std::size_t resource_base;  // offset of resourceWindow_inlined.lsaFlatBase in ncclDevComm
  std::size_t resource_stride;
};

namespace {

constexpr int kVersioned = 22900;     // the first version whose structs have a size and a version
constexpr std::size_t kSpare = 1024;  // extra bytes after the struct that NCCL writes

// The requirements of 2.28.0 to 2.28.6.
struct FirstRequirements {
  ncclDevResourceRequirements_t* resourceRequirementsList;
  ncclTeamRequirements_t* teamRequirementsList;
  bool lsaMultimem;
  int lsaBarrierCount;
};
static_assert(sizeof(FirstRequirements) == 24);
static_assert(sizeof(ncclDevCommRequirements_t) == 120 && sizeof(ncclDevComm) == 248);

constexpr DeviceLayout kLayouts[] = {
#define LAYOUT(since, requirements, comm, base, stride) {since, requirements, comm, base, stride},
#include "abi/device_layouts.inc"
#undef LAYOUT
};
constexpr int kOldest = kLayouts[0].since;
constexpr int kLayoutsEnd = (kDeviceVersion / 100 + 1) * 100;  // newer ones may differ

const DeviceLayout* layout_of(int version) {
  const DeviceLayout* found = nullptr;
  for (const DeviceLayout& layout : kLayouts)
    if (layout.since <= version && version < kLayoutsEnd) found = &layout;
  return found;
}

template <class T>
T read(const std::vector<std::byte>& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// Links the elements of a vector into one of NCCL's lists. Returns its head.
template <class Item>
Item* link_list(std::vector<Item>& items) {
  for (std::size_t i = 1; i < items.size(); ++i) items[i - 1].next = &items[i];
  return items.empty() ? nullptr : items.data();
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(std::shared_ptr<Communicator> communicator,
                                       const Request& request)
    : communicator_(std::move(communicator)), version_(request.version) {
  communicator_->handle();
  communicator_->library().nccl<&NcclTable::ncclDevCommCreate>();
  choose_layout();
  check_fields(request.fields);
  pass(request);
}

DeviceCommunicator::~DeviceCommunicator() {
  release_copy();
  if (is_open()) {
    communicator_->keep_until_closed(std::move(passed_));
  } else {
    cancel();
  }
}

void DeviceCommunicator::choose_layout() {
  const int loaded = communicator_->library().version();
  if (version_ == 0) version_ = loaded;
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("version: the kernels are compiled with NCCL " +
                                version_text(version_) + ", and the loaded library is " +
                                version_text(loaded) + ": " + why);
  };
  if (version_ < kOldest) refuse("the device API needs NCCL 2.28");
  if (version_ > loaded) refuse("a library supports only its own version and older ones");
  layout_ = layout_of(version_);
  if ((version_ < kVersioned || loaded < kVersioned) && layout_ != layout_of(loaded))
    refuse("the structs of 2.28 have no version, so kernels need the library of their headers");
  if (layout_) {
    nbytes_ = layout_->dev_comm;
    return;
  }
  if (version_ != loaded)
    refuse(
        "the struct layouts of its headers are unknown; compile the kernels with the headers of "
        "the loaded library");
  runtime_version_ = true;
  nbytes_ = query_properties(*communicator_).devCommRuntimeVersionSize;
}

void DeviceCommunicator::check_fields(const ncclDevCommRequirements_t& fields) const {
  const ncclDevCommRequirements_t defaults;
  const auto check = [&](int since, std::string_view field, const char* argument, bool is_set) {
    // 2.28 has only these fields, in different layouts; the first 2.28 only two of them.
    const bool in_first = field == "lsaMultimem" || field == "lsaBarrierCount";
    if (since == kVersioned) since = in_first ? kOldest : 22807;
    if (is_set && version_ < since)
      throw std::invalid_argument(std::string(argument) + ": needs NCCL " + version_text(since) +
                                  "; the device communicator is for kernels compiled with " +
                                  version_text(version_));
  };
#define FIELD(since, type, name, argument, value) \
  check(since, #name, #argument, fields.name != defaults.name);
#include "abi/device_requirements_fields.inc"
#undef FIELD
}

void DeviceCommunicator::pass(const Request& request) {
  Passed& passed = *passed_;
  sizes_ = request.buffers;
  passed.handles.resize(sizes_.size());
  passed.multimem.resize(request.teams.size());
  for (std::size_t i = 0; i < sizes_.size(); ++i)
    passed.resources.push_back({.bufferSize = sizes_[i],
                                .bufferAlign = kResourceUnit,
                                .outBufferHandle = &passed.handles[i]});
  for (std::size_t i = 0; i < request.teams.size(); ++i)
    passed.teams.push_back(
        {.team = request.teams[i], .multimem = true, .outMultimemHandle = &passed.multimem[i]});
  passed.dev_comm.resize(nbytes_ + kSpare);

  ncclDevCommRequirements_t& requirements = passed.requirements;
  requirements = request.fields;
  requirements.size = layout_ ? layout_->requirements : sizeof requirements;
  requirements.version = static_cast<unsigned>(std::min(version_, kDeviceVersion));
  requirements.useRuntimeVersion = runtime_version_;
  requirements.resourceRequirementsList = link_list(passed.resources);
  requirements.teamRequirementsList = link_list(passed.teams);
  if (version_ >= kVersioned) return;
  // The layouts of 2.28: the same struct without its header, and a shorter one.
  passed.small_requirements.resize(layout_->requirements);
  const FirstRequirements first{requirements.resourceRequirementsList,
                                requirements.teamRequirementsList, requirements.lsaMultimem,
                                requirements.lsaBarrierCount};
  const void* source = &requirements.resourceRequirementsList;
  if (layout_->requirements == sizeof first) source = &first;
  std::memcpy(passed.small_requirements.data(), source, layout_->requirements);
}

void DeviceCommunicator::create(const std::vector<DeviceCommunicator*>& device_comms) {
  const auto begin = [&](Library& library) {
    GroupScope group(library);
    for (DeviceCommunicator* one : device_comms) one->begin();
    group.end();
  };
  create_together(device_comms, "ncclDevCommCreate", begin, [&] {
    for (DeviceCommunicator* one : device_comms) one->finish();
  });
}

void DeviceCommunicator::begin() {
  const Communicator::Use comm(*communicator_);
  const void* requirements = &passed_->requirements;
  if (!passed_->small_requirements.empty()) requirements = passed_->small_requirements.data();
  COMM_CHECK(comm, ncclDevCommCreate,
             (comm, static_cast<const ncclDevCommRequirements_t*>(requirements),
              reinterpret_cast<ncclDevComm_t*>(passed_->dev_comm.data())));
}

void DeviceCommunicator::finish() {
  if (!communicator_->blocking()) {
    try {
      communicator_->wait_ready(std::nullopt);
    } catch (...) {  // a thread of NCCL may still write it
      communicator_->keep_until_closed(passed_);
      throw;
    }
  }
  lsa_ = team_of(*communicator_, TeamKind::kLsa);
  counted_ = communicator_->add_memory(passed_.get(), {0, false});
  communicator_->open_memory(passed_.get(), nullptr);
  state_ = State::kOpen;
}

void DeviceCommunicator::cancel() {
  if (std::exchange(counted_, false)) communicator_->remove_memory(passed_.get());
  state_ = State::kClosed;
}

void DeviceCommunicator::close() {
  check_created();
  if (closed()) {
    release_copy();
    return cancel();
  }
  const Communicator::Claim claim(communicator_);
  const Library& library = communicator_->library();
  // NCCL unmaps the resource memory immediately. On CPUs the caller must wait, because a stream of
  // this process may depend on what the caller does next.
  if (library.memory() == Memory::kDevice &&
      !wait_for_device_or_signal(communicator_->shared_library(), communicator_->device()))
    throw std::invalid_argument("device communicator: it cannot be closed during a capture");
  {
    const Communicator::Use comm(*communicator_);
    COMM_CHECK(comm, ncclDevCommDestroy,
               (comm, reinterpret_cast<const ncclDevComm_t*>(passed_->dev_comm.data())));
  }
  release_copy();
  cancel();
}

void DeviceCommunicator::check_created() const {
  if (state_ == State::kPending)
    throw std::invalid_argument(
        "device communicator: it is still being created; leave the group first");
}

void DeviceCommunicator::check_open() const {
  check_created();
  if (closed()) throw std::invalid_argument("device communicator: it is closed");
}

const void* DeviceCommunicator::data() const {
  check_open();
  return passed_->dev_comm.data();
}

const void* DeviceCommunicator::device_data() {
  check_open();
  const Library& library = communicator_->library();
  if (library.memory() == Memory::kHost) return passed_->dev_comm.data();
  const std::lock_guard lock(mutex_);
  if (copy_) return copy_;
  copy_device_ = communicator_->device();
  const DeviceScope scope(library, copy_device_);
  void* copy = allocate_memory(communicator_->library(), nbytes_);
  try {
    copy_to_device(communicator_->shared_library(), copy_device_, copy, passed_->dev_comm.data(),
                   nbytes_);
  } catch (...) {
    free_memory_later(communicator_->shared_library(), copy, copy_device_);
    throw;
  }
  return copy_ = copy;
}

void DeviceCommunicator::release_copy() noexcept {
  const std::lock_guard lock(mutex_);
  if (void* copy = std::exchange(copy_, nullptr))
    free_memory_later(communicator_->shared_library(), copy, copy_device_);
}

const void* DeviceCommunicator::buffer(std::size_t index, int lsa_rank) const {
  check_open();
  check_lsa_rank(lsa_, lsa_rank);
  if (!layout_)
    throw std::invalid_argument("buffers: their addresses in NCCL " + version_text(version_) +
                                " are unknown; kernels can find them by their handles");
  const auto base = read<std::uintptr_t>(passed_->dev_comm, layout_->resource_base);
  const auto stride =
      std::uint64_t{read<std::uint32_t>(passed_->dev_comm, layout_->resource_stride)} << 32;
  return reinterpret_cast<const void*>(base + stride * static_cast<std::uint64_t>(lsa_rank) +
                                       passed_->handles[index] * kResourceUnit);
}

ncclDevResourceHandle DeviceCommunicator::buffer_handle(std::size_t index) const {
  check_open();
  return passed_->handles[index];
}

const void* DeviceCommunicator::multimem(std::size_t team) const {
  check_open();
  return passed_->multimem[team].mcBasePtr;
}

ncclCommProperties_t query_properties(Communicator& communicator) {
  constexpr std::size_t kFirstSize = 40, kFirstGinType = 34;  // of NCCL 2.29.2, a byte
  constexpr std::pair<int, std::size_t> kSizes[] = {
      {22907, kFirstSize}, {23100, offsetof(ncclCommProperties_t, commHash)}, {23200, 144}};
  const int version = std::min(communicator.library().version(), kDeviceVersion);
  ncclCommProperties_t properties;
  for (const auto& [end, size] : kSizes)
    if (version < end) {
      properties.size = size;
      break;
    }
  properties.version = static_cast<unsigned>(version);
  const Communicator::Use comm(communicator);
  COMM_CHECK(comm, ncclCommQueryProperties, (comm, &properties));
  if (properties.size == kFirstSize)
    properties.ginType = static_cast<ncclGinType_t>(
        reinterpret_cast<const unsigned char*>(&properties)[kFirstGinType]);
  return properties;
}

void check_lsa_rank(const ncclTeam& lsa, int lsa_rank) {
  if (lsa_rank < 0 || lsa_rank >= lsa.nRanks)
    throw std::invalid_argument("lsa_rank: " + std::to_string(lsa_rank) +
                                " is out of range for an LSA team of " +
                                std::to_string(lsa.nRanks) + " ranks");
}

ncclTeam team_of(Communicator& communicator, TeamKind kind) {
  const Library& library = communicator.library();
  const Communicator::Use comm(communicator);
  ncclTeam team{};
  const char* function = "ncclTeamWorld";
  if (kind == TeamKind::kWorld) {
    team = library.nccl<&NcclTable::ncclTeamWorld>()(comm);
  } else if (kind == TeamKind::kLsa) {
    function = "ncclTeamLsa";
    team = library.nccl<&NcclTable::ncclTeamLsa>()(comm);
  } else {
    function = "ncclTeamRail";
    team = library.nccl<&NcclTable::ncclTeamRail>()(comm);
  }
  if (team.nRanks < 1 || team.stride == 0)
    communicator.throw_failed(ncclInternalError, function, __FILE__, __LINE__);
  return team;
}

int rank_to_world(Communicator& communicator, const ncclTeam& team, int rank) {
  const Communicator::Use comm(communicator);
  return communicator.library().nccl<&NcclTable::ncclTeamRankToWorld>()(comm, team, rank);
}

int rank_to_lsa(Communicator& communicator, const ncclTeam& team, int rank) {
  const Communicator::Use comm(communicator);
  return communicator.library().nccl<&NcclTable::ncclTeamRankToLsa>()(comm, team, rank);
}

}  // namespace pynccl
