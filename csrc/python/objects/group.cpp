#include "python/objects/group.h"

#include <algorithm>

#include "core/graph.h"
#include "python/call/gil.h"

namespace pynccl::python {

Group& Group::of_this_thread() {
  // Never destroyed: it may hold Python objects, and a thread may end after the interpreter.
  thread_local Group& group = *new Group;
  return group;
}

void Group::Creation::finish() const {
  kind == Kind::kMake ? communicator->finish() : communicator->settle();
}

void Group::Creation::drop() const {
  if (kind == Kind::kMake) communicator->abort();
}

void Group::record(Kind kind, std::shared_ptr<Communicator> communicator,
                   std::function<void(Communicator&)> begin) {
  if (recorder_)
    throw std::runtime_error(std::string(recorder_->name) +
                             ": a communicator cannot be made or changed inside");
  creations_.push_back({kind, std::move(communicator), std::move(begin)});
}

void Group::record(std::shared_ptr<Window> window, py::object buffer) {
  if (recorder_)
    throw std::runtime_error(std::string(recorder_->name) +
                             ": a window cannot be registered inside");
  registrations_.push_back({std::move(window), std::move(buffer)});
}

void Group::enter() {
  marks_.push_back({batch_.mark(), creations_.size(), registrations_.size()});
  if (marks_.size() == 1) threads_.fetch_add(1, std::memory_order_relaxed);
}

void Group::leave(bool failed) {
  const Mark mark = marks_.back();
  marks_.pop_back();
  if (marks_.empty()) threads_.fetch_sub(1, std::memory_order_relaxed);
  if (!failed) return;
  for (std::size_t i = mark.creations; i < creations_.size(); ++i) creations_[i].drop();
  for (std::size_t i = mark.registrations; i < registrations_.size(); ++i)
    registrations_[i].window->give_up();
  creations_.resize(mark.creations);
  registrations_.resize(mark.registrations);
  batch_.cut(mark.batch);
}

void Group::exit(bool failed) {
  if (marks_.size() <= (recorder_ ? 1 : 0))
    throw std::runtime_error("group: it was not entered on this thread");
  leave(failed);
  if (marks_.empty() && !failed) issue();
}

void Group::enter(const Recorder& recorder) {
  const std::string name = recorder.name;
  if (!marks_.empty())
    throw std::runtime_error(name +
                             ": it cannot begin inside a group or another plan or simulation");
  recorder_ = &recorder;
  enter();
}

Batch Group::exit(const Recorder& recorder, bool failed) {
  const std::string name = recorder.name;
  if (recorder_ != &recorder)
    throw std::runtime_error(name + ": it was not entered on this thread");
  if (marks_.size() > 1) throw std::runtime_error(name + ": a group inside has not ended");
  recorder_ = nullptr;
  leave(failed);
  return std::exchange(batch_, {});
}

void Group::issue() {
  // Taken out first: whatever happens, the next group starts empty. The objects outlive the calls.
  Batch batch = std::exchange(batch_, {});
  if (!creations_.empty()) create();
  if (!registrations_.empty()) register_windows();
  if (Graph::any_capture()) batch.hold_in_captures();
  {
    const GilReleased released;
    batch.issue();
  }
  // The next group uses the memory again; letting go of the objects may run Python code, and that a
  // group of its own.
  batch.cut({});
  if (batch_.empty()) batch_ = std::move(batch);
}

void Group::create() {
  const auto creations = std::exchange(creations_, {});
  const GilReleased released;
  std::vector<Library*> libraries;
  for (const Creation& creation : creations)
    if (std::find(libraries.begin(), libraries.end(), &creation.communicator->library()) ==
        libraries.end())
      libraries.push_back(&creation.communicator->library());
  try {
    for (Library* library : libraries) {
      GroupScope group(*library);
      for (const Creation& creation : creations)
        if (&creation.communicator->library() == library) creation.begin(*creation.communicator);
      group.end();
    }
    for (const Creation& creation : creations) creation.finish();
  } catch (...) {
    for (const Creation& creation : creations) creation.drop();
    throw;
  }
}

void Group::register_windows() {
  const auto registrations = std::exchange(registrations_, {});
  const GilReleased released;
  std::vector<Library*> libraries;
  for (const Registration& one : registrations) {
    Library* library = &one.window->communicator()->library();
    if (std::find(libraries.begin(), libraries.end(), library) == libraries.end())
      libraries.push_back(library);
  }
  try {
    for (Library* library : libraries) {
      GroupScope group(*library);
      for (const Registration& one : registrations)
        if (&one.window->communicator()->library() == library) one.window->begin();
      group.end();
    }
    for (const Registration& one : registrations) one.window->finish();
  } catch (...) {
    for (const Registration& one : registrations) one.window->give_up();
    throw;
  }
}

void create(std::shared_ptr<Communicator> communicator, std::function<void(Communicator&)> begin) {
  if (Group* group = Group::active())
    return group->record(Group::Kind::kMake, std::move(communicator), std::move(begin));
  const GilReleased released;
  begin(*communicator);
  communicator->finish();
}

void change(std::shared_ptr<Communicator> communicator, std::function<void(Communicator&)> begin) {
  if (Group* group = Group::active())
    return group->record(Group::Kind::kChange, std::move(communicator), std::move(begin));
  const GilReleased released;
  begin(*communicator);
  communicator->settle();
}

}  // namespace pynccl::python
