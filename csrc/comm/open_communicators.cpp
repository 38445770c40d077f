#include "comm/open_communicators.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "comm/deadlines.h"
#include "common/per_process.h"

namespace pynccl {
namespace {

struct OpenList {
  std::mutex mutex;
  std::vector<OpenCommunicators::Entry> all;
};

OpenList& open_list() { return common::per_process<OpenList>(); }

}  // namespace

void OpenCommunicators::add(const std::shared_ptr<Deadlines>& deadlines,
                            std::weak_ptr<Communicator> communicator) {
  OpenList& list = open_list();
  const std::lock_guard lock(list.mutex);
  list.all.push_back({deadlines, std::move(communicator)});
}

void OpenCommunicators::remove(const Deadlines& deadlines) {
  OpenList& list = open_list();
  const std::lock_guard lock(list.mutex);
  std::erase_if(list.all, [&](const Entry& one) { return one.deadlines.get() == &deadlines; });
}

std::vector<OpenCommunicators::Entry> OpenCommunicators::all() {
  OpenList& list = open_list();
  const std::lock_guard lock(list.mutex);
  return list.all;
}

std::vector<std::shared_ptr<Communicator>> OpenCommunicators::communicators() {
  std::vector<std::shared_ptr<Communicator>> open;
  for (const Entry& one : all())
    if (auto communicator = one.communicator.lock()) open.push_back(std::move(communicator));
  return open;
}

std::optional<std::int64_t> OpenCommunicators::shortest_limit() {
  std::optional<std::int64_t> limit;
  for (const Entry& one : all()) {
    const std::int64_t own = one.deadlines->own_limit();
    limit = std::min(limit.value_or(own), own);
  }
  return limit;
}

}  // namespace pynccl
