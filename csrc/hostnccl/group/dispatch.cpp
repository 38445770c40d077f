#include "hostnccl/group/dispatch.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include "hostnccl/base/delay.h"
#include "hostnccl/group/group.h"
#include "hostnccl/operations/progress_engine.h"
#include "hostnccl/streams/capture.h"
#include "hostnccl/streams/event.h"

namespace hostnccl {
namespace {

using Streams = std::vector<Ref<Stream>>;

void run_here(ProgressEngine& launch) {
  Delay::pause();
  const std::optional<Error> error = launch.run();
  launch.clear();
  if (error) throw *error;
}

// On the first of the streams; if it fails, each of them will tell.
void run_on(const Streams& streams, std::shared_ptr<ProgressEngine> launch) {
  Stream::enqueue(streams[0], [launch = std::move(launch), streams] {
    if (!launch->run()) return;
    for (const Ref<Stream>& stream : streams) stream->note_failure();
  });
}

std::shared_ptr<Event::Record> record_on(const Ref<Stream>& stream) {
  Event event(false);
  event.record(stream);
  return event.last();
}

using Events = std::vector<Ref<Event>>;

void record_all(const Events& events, const Ref<Stream>& stream) {
  for (const Ref<Event>& event : events) event->record(stream);
}

void run_between(const Streams& streams, std::shared_ptr<ProgressEngine> launch,
                 const Events& launched) {
  for (size_t i = 1; i < streams.size(); ++i) wait_for(streams[0], record_on(streams[i]));
  record_all(launched, streams[0]);
  run_on(streams, std::move(launch));
  if (streams.size() == 1) return;
  const auto done = record_on(streams[0]);
  for (size_t i = 1; i < streams.size(); ++i) wait_for(streams[i], done);
}

// A launch to be, with the streams that its operations are on.
struct Component {
  std::shared_ptr<ProgressEngine> launch;  // none: it is part of the calling thread's
  Streams streams;
  Events launched;
  bool in_calling_thread = false;
  std::vector<Graph::Call> calls;  // if it is recorded, and then no launch

  bool capturing() const {
    return std::any_of(streams.begin(), streams.end(),
                       [](const Ref<Stream>& stream) { return stream->capturing(); });
  }
  void check() const {
    const auto captures = [](const Ref<Stream>& stream) { return stream->capturing(); };
    if (!capturing()) return;
    if (!in_calling_thread && std::all_of(streams.begin(), streams.end(), captures)) return;
    fail(abi::ncclInvalidUsage,
         "some streams of a group are capturing and others are not, although they share a "
         "communicator: either all or none of them");
  }

  void add(const Ref<Stream>& stream) {
    if (!stream) {
      in_calling_thread = true;
    } else if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
      streams.push_back(stream);
    }
  }
  ProgressEngine& own_launch() {
    if (!launch) launch = std::make_shared<ProgressEngine>();
    return *launch;
  }
};

// For each item the number of an item that stands for its component.
std::vector<size_t> connect(const std::vector<Item>& items) {
  std::vector<size_t> parent(items.size());
  std::iota(parent.begin(), parent.end(), size_t{0});
  const auto root = [&parent](size_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  std::map<const void*, size_t> first_with;  // of a communicator or a stream
  for (size_t i = 0; i < items.size(); ++i) {
    const void* comm = items[i].comm.get();
    const void* stream = items[i].stream.get();  // null: the calling thread, a stream like others
    for (const void* shared : {comm, stream}) {
      parent[root(i)] = root(first_with.try_emplace(shared, i).first->second);
    }
  }
  for (size_t i = 0; i < items.size(); ++i) parent[i] = root(i);
  return parent;
}

}  // namespace

void dispatch(const Item& item, ProgressEngine& here) {
  if (item.launched) item.launched->record(item.stream);
  if (item.stream && item.stream->capturing()) {
    return Capture::record({item.stream},
                           std::vector<Graph::Call>{{item.comm, item.operation, item.window}});
  }
  if (item.stream) {
    auto launch = std::make_shared<ProgressEngine>();
    launch->add(item.comm, item.operation, item.window);
    launch->take_sequences();
    run_on({item.stream}, std::move(launch));
    return;
  }
  here.clear();
  here.add(item.comm, item.operation, item.window);
  here.take_sequences();
  run_here(here);
}

void dispatch(const std::vector<Item>& items, ProgressEngine& here) {
  here.clear();
  const auto has_stream = [](const Item& item) { return static_cast<bool>(item.stream); };
  if (std::none_of(items.begin(), items.end(), has_stream)) {
    for (const Item& item : items) {
      here.add(item.comm, item.operation, item.window);
      if (item.launched) item.launched->record({});
    }
    here.take_sequences();
    return run_here(here);
  }

  const std::vector<size_t> component_of = connect(items);
  std::vector<Component> components(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    Component& component = components[component_of[i]];
    component.add(items[i].stream);
    if (items[i].launched) component.launched.push_back(items[i].launched);
  }
  for (const Component& component : components) component.check();
  for (size_t i = 0; i < items.size(); ++i) {
    Component& component = components[component_of[i]];
    if (component.capturing()) {
      component.calls.push_back({items[i].comm, items[i].operation, items[i].window});
      continue;
    }
    ProgressEngine& launch = component.in_calling_thread ? here : component.own_launch();
    launch.add(items[i].comm, items[i].operation, items[i].window);
  }
  for (Component& component : components) {
    if (component.calls.empty()) continue;
    record_all(component.launched, component.streams[0]);
    Capture::record(component.streams, std::move(component.calls));
  }
  here.take_sequences();
  for (Component& component : components) {
    if (component.launch) component.launch->take_sequences();
  }
  for (Component& component : components) {
    if (component.launch) run_between(component.streams, component.launch, component.launched);
  }
  for (Component& component : components) {
    if (!component.in_calling_thread) continue;
    for (const Ref<Stream>& stream : component.streams) record_on(stream)->wait();
    record_all(component.launched, {});
  }
  run_here(here);
}

}  // namespace hostnccl
