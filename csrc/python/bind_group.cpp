#include <algorithm>

#include "python/bindings.h"
#include "python/group.h"

namespace pynccl::python {
namespace {

// The context manager that group() returns. It has no state: groups nest per thread.
struct GroupContext {};

// Runs body inside one NCCL group per library, in the order in which the libraries first appear in
// items.
template <class Items, class LibraryOf, class Body>
void for_each_library(const Items& items, const LibraryOf& library_of, const Body& body) {
  std::vector<Library*> libraries;
  for (const auto& item : items)
    if (std::find(libraries.begin(), libraries.end(), &library_of(item)) == libraries.end())
      libraries.push_back(&library_of(item));
  for (Library* library : libraries) {
    GroupScope group(*library);
    for (const auto& item : items)
      if (&library_of(item) == library) body(item);
    group.end();
  }
}

}  // namespace

Group& Group::of_this_thread() {
  // Never destroyed: it may hold Python objects, and a thread may end after the interpreter.
  thread_local Group& group = *new Group;
  return group;
}

void Group::record(Communicator& communicator, const Operation& operation,
                   std::initializer_list<PyObject*> held) {
  calls_.push_back({&communicator, operation});
  for (PyObject* object : held)
    if (object) held_.push_back(py::reinterpret_borrow<py::object>(object));
}

void Group::record(std::shared_ptr<Communicator> communicator,
                   std::function<void(Communicator&)> begin) {
  creations_.push_back({std::move(communicator), std::move(begin)});
}

void Group::enter() {
  ++depth_;
  marks_.push_back({calls_.size(), creations_.size(), held_.size()});
}

void Group::exit(bool failed) {
  if (depth_ == 0) throw std::runtime_error("group: it was not entered on this thread");
  --depth_;
  const Mark mark = marks_.back();
  marks_.pop_back();
  if (failed) {
    for (std::size_t i = mark.creations; i < creations_.size(); ++i)
      creations_[i].communicator->abort();
    calls_.resize(mark.calls);
    creations_.resize(mark.creations);
    held_.resize(mark.held);
  } else if (depth_ == 0) {
    issue();
  }
}

void Group::issue() {
  // Taken out first: whatever happens, the next group starts empty. The objects outlive the calls.
  const auto calls = std::exchange(calls_, {});
  const auto creations = std::exchange(creations_, {});
  const auto held = std::exchange(held_, {});
  const py::gil_scoped_release released;
  try {
    for_each_library(
        creations, [](const Creation& c) -> Library& { return c.communicator->library(); },
        [](const Creation& c) { c.begin(*c.communicator); });
    for (const Creation& creation : creations) creation.communicator->finish();
  } catch (...) {
    for (const Creation& creation : creations) creation.communicator->abort();
    throw;
  }
  // One that was closed meanwhile is found before anything is sent.
  for (const Call& call : calls) call.communicator->handle();
  for_each_library(
      calls, [](const Call& c) -> Library& { return c.communicator->library(); },
      [](const Call& c) { c.communicator->issue(c.operation); });
  for (const Call& call : calls) call.communicator->settle();
}

void create(std::shared_ptr<Communicator> communicator, std::function<void(Communicator&)> begin) {
  if (Group& group = Group::of_this_thread(); group.active())
    return group.record(std::move(communicator), std::move(begin));
  const py::gil_scoped_release released;
  begin(*communicator);
  communicator->finish();
}

void bind_group(py::module_& m) {
  py::class_<GroupContext>(m, "GroupContext",
                           "What group() returns; groups nest, each thread has its own.")
      .def("__enter__",
           [](const py::object& self) {
             Group::of_this_thread().enter();
             return self;
           })
      .def("__exit__",
           [](const GroupContext&, const py::object& type, const py::object&, const py::object&) {
             Group::of_this_thread().exit(!type.is_none());
             return false;
           });
  m.def(
      "group", [] { return GroupContext(); },
      R"(Fuse what the with block calls into one NCCL group (ncclGroupStart, ncclGroupEnd).

Operations are checked when they are called and issued together when the outermost group ends: sends
and receives in any order cannot deadlock, one thread can drive several ranks, and communicators
made inside are ready afterwards. An exception inside drops all that was called and leaves every
communicator usable. What is no operation, such as close() and abort(), takes effect at once.

Raises:
    NcclError: at the end of the block, if NCCL refuses an operation.)");
}

}  // namespace pynccl::python
