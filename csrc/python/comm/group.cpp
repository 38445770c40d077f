#include "python/comm/group.h"

#include <algorithm>

#include "python/call/gil.h"

namespace pynccl::python {
namespace {

// Splits the items by library, in the order in which the libraries first appear.
template <class Item>
std::vector<std::vector<const Item*>> by_library(const std::vector<Item>& items) {
  std::vector<std::vector<const Item*>> parts;
  for (const Item& item : items) {
    const auto same = std::find_if(parts.begin(), parts.end(), [&](const auto& part) {
      return &part.front()->library() == &item.library();
    });
    (same == parts.end() ? parts.emplace_back() : *same).push_back(&item);
  }
  return parts;
}

// Calls make, and drops all items if it throws.
template <class Item, class Make>
void drop_on_error(const std::vector<Item>& items, Make&& make) {
  try {
    make();
  } catch (...) {
    for (const Item& item : items) item.drop();
    throw;
  }
}

// Creates or changes communicators, in one NCCL group per library. Does not need the GIL.
void create_together(const std::vector<Group::PendingCommunicator>& items) {
  drop_on_error(items, [&] {
    for (const auto& part : by_library(items)) {
      GroupScope group(part.front()->library());
      for (const auto* item : part) item->begin();
      group.end();
    }
    for (const auto& item : items) item.finish();
  });
}

// Creates windows or device communicators. Does not need the GIL.
template <class Object>
void create_objects(const std::vector<Group::Pending<Object>>& items,
                    void (*create)(const std::vector<Object*>&)) {
  drop_on_error(items, [&] {
    for (const auto& part : by_library(items)) {
      std::vector<Object*> objects;
      objects.reserve(part.size());
      for (const auto* item : part) objects.push_back(item->object.get());
      create(objects);
    }
  });
}

// The new communicators, to which init_timeout applies.
std::vector<std::shared_ptr<Communicator>> created_by(
    const std::vector<Group::PendingCommunicator>& pending) {
  std::vector<std::shared_ptr<Communicator>> created;
  for (const auto& one : pending)
    if (one.action == Group::Action::kCreate) created.push_back(one.communicator);
  return created;
}

// Drops all items after the first ones.
template <class Item>
void drop_after(std::vector<Item>& items, std::size_t first) {
  for (std::size_t i = first; i < items.size(); ++i) items[i].drop();
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(first), items.end());
}

}  // namespace

Group& Group::of_this_thread() {
  // Never destroyed: it may own Python objects, and a thread may outlive the interpreter.
  thread_local Group& group = *new Group;
  return group;
}

void Group::refuse_in_recorder(const char* reason) const {
  if (recorder_) throw std::runtime_error(std::string(recorder_->name) + ": " + reason);
}

void Group::record(PendingCommunicator communicator) {
  refuse_in_recorder("a communicator cannot be created or changed inside it");
  communicators_.push_back(std::move(communicator));
}

void Group::record(std::shared_ptr<Window> window) {
  refuse_in_recorder("a window cannot be registered inside it");
  windows_.push_back({std::move(window)});
}

void Group::record(std::shared_ptr<DeviceCommunicator> communicator) {
  refuse_in_recorder("a device communicator cannot be created inside it");
  device_communicators_.push_back({std::move(communicator)});
}

void Group::at_end(AtEnd function) {
  refuse_in_recorder("an asynchronous operation cannot be recorded");
  ends_.push_back(std::move(function));
}

void Group::enter() {
  marks_.push_back({batch_.mark(), communicators_.size(), windows_.size(),
                    device_communicators_.size(), ends_.size()});
  if (marks_.size() == 1) threads_.fetch_add(1, std::memory_order_relaxed);
}

void Group::leave(bool failed) {
  const Mark mark = marks_.back();
  marks_.pop_back();
  if (marks_.empty()) threads_.fetch_sub(1, std::memory_order_relaxed);
  if (!failed) return;
  drop_after(communicators_, mark.communicators);
  drop_after(windows_, mark.windows);
  drop_after(device_communicators_, mark.device_communicators);
  for (std::size_t i = mark.ends; i < ends_.size(); ++i) ends_[i](false);
  ends_.resize(mark.ends);
  batch_.cut(mark.batch);
}

void Group::exit(bool failed) {
  if (marks_.size() <= (recorder_ ? 1 : 0))
    throw std::runtime_error("group: it was not entered on this thread");
  if (marks_.size() == 1 && !failed) check_overlap();
  leave(failed);
  if (marks_.empty() && !failed) issue();
}

// Called before anything is issued. Drops everything if operations overlap.
void Group::check_overlap() {
  if (batch_.size() < 2) return;  // a single operation was checked when it was called
  try {
    batch_.check_overlap();
  } catch (...) {
    recorder_ = nullptr;
    leave(true);
    throw;
  }
}

void Group::enter(Recorder& recorder) {
  const std::string name = recorder.name;
  if (!marks_.empty())
    throw std::runtime_error(name + ": it cannot begin inside a group, a plan or a simulation");
  recorder_ = &recorder;
  recorder.owner = this;
  enter();
}

Group::Recorder::~Recorder() {
  if (!owner || owner->recorder_ != this) return;
  owner->recorder_ = nullptr;
  while (!owner->marks_.empty()) owner->leave(true);
}

Batch Group::exit(const Recorder& recorder, bool failed) {
  const std::string name = recorder.name;
  if (recorder_ != &recorder)
    throw std::runtime_error(name + ": it was not entered on this thread");
  if (marks_.size() > 1) throw std::runtime_error(name + ": a group inside it has not ended");
  if (!failed) check_overlap();
  recorder_ = nullptr;
  leave(failed);
  return std::exchange(batch_, {});
}

void Group::issue() {
  // Moved out first, so that the next group starts empty even after an exception.
  Batch batch = std::exchange(batch_, {});
  const std::vector<AtEnd> ends = std::exchange(ends_, {});
  try {
    issue(batch);
  } catch (...) {
    for (const AtEnd& end : ends) end(false);
    throw;
  }
  for (const AtEnd& end : ends) end(true);
  // The next group reuses the memory, unless releasing the objects ran Python code that used a
  // group itself.
  batch.cut({});
  if (batch_.empty()) batch_ = std::move(batch);
}

void Group::issue(const Batch& batch) {
  const auto communicators = std::exchange(communicators_, {});
  const auto windows = std::exchange(windows_, {});
  const auto devices = std::exchange(device_communicators_, {});
  if (!communicators.empty()) {
    const GilReleased released;
    drop_on_error(windows, [&] {
      drop_on_error(devices, [&] {
        Communicator::create(created_by(communicators),
                             [communicators] { create_together(communicators); });
      });
    });
  }
  if (!windows.empty()) {
    const GilReleased released;
    drop_on_error(devices, [&] { create_objects(windows, &Window::register_all); });
  }
  if (!devices.empty()) {
    const GilReleased released;
    create_objects(devices, &DeviceCommunicator::create);
  }
  batch.run();
}

void create_or_change(Group::Action action, std::shared_ptr<Communicator> communicator,
                      std::function<void(Communicator&)> begin) {
  Group::PendingCommunicator pending{action, std::move(communicator), std::move(begin)};
  if (Group* group = Group::active()) return group->record(std::move(pending));
  const GilReleased released;
  Communicator::create(created_by({pending}), [pending] {
    pending.begin();
    pending.finish();
  });
}

}  // namespace pynccl::python
