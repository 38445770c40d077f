// Device communicators, which <pynccl/device.h> uses on CPUs. Each rank has resource memory: a
// window with a ResourceHeader, barriers and the caller's requirements.
#pragma once

#include <vector>

#include "abi/nccl_types.h"
#include "hostnccl/communicator/job.h"

namespace hostnccl {

// A copy of ncclDevCommRequirements_t with its lists.
class DeviceRequirements {
 public:
  // Throws for requirements that NCCL refuses on a machine without multicast and network devices.
  DeviceRequirements(const abi::ncclDevCommRequirements_t& given, int nranks);

  // Assigns offsets to all resources and writes them through the caller's pointers. Returns the
  // total size.
  size_t place(abi::ncclDevComm& out) const;
  unsigned version() const { return version_; }

 private:
  unsigned version_;
  int nranks_;
  int lsa_barriers_;
  std::vector<abi::ncclDevResourceRequirements_t> resources_;
};

Job device_communicator_job(abi::ncclDevComm* out, const Ref<Communicator>& comm,
                            DeviceRequirements requirements);

}  // namespace hostnccl
