#include "hostnccl/group/dispatch.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include "hostnccl/base/delay.h"
#include "hostnccl/operations/progress_engine.h"
#include "hostnccl/streams/capture.h"
#include "hostnccl/streams/event.h"

namespace hostnccl {
namespace {

using Streams = std::vector<Ref<Stream>>;
using Events = std::vector<Ref<Event>>;

void run_inline(ProgressEngine& engine) {
  Delay::pause();
  const std::optional<Error> error = engine.run();
  engine.clear();
  if (error) throw *error;
}

Stream::Prepared prepare_on(const Ref<Stream>& stream, std::shared_ptr<ProgressEngine> engine) {
  return {stream, [engine = std::move(engine)] {
            if (const std::optional<Error> error = engine->run()) throw Error(*error);
          }};
}

std::shared_ptr<EventRecord> record_new_event(const Ref<Stream>& stream) {
  Event event(false);
  event.record(stream);
  return event.last_record();
}

void record_all(const Events& events, const Ref<Stream>& stream) {
  for (const Ref<Event>& event : events) event->record(stream);
}

// Prepares an engine that starts when all streams have reached this point. Later work of each
// stream waits for its end, and each stream inherits the failures of all of them.
void prepare_on_all(std::vector<Stream::Prepared>& prepared, const Streams& streams,
                    std::shared_ptr<ProgressEngine> engine, const Events& launch_events) {
  for (size_t i = 1; i < streams.size(); ++i) stream_wait(streams[0], record_new_event(streams[i]));
  record_all(launch_events, streams[0]);
  prepared.push_back(prepare_on(streams[0], std::move(engine)));
  if (streams.size() == 1) return;
  const auto done = std::make_shared<EventRecord>();
  prepared.emplace_back(streams[0],
                        [done, on = streams[0].get(), reported = streams[0]->reported_failure()] {
                          done->complete(on->failure_besides(reported));
                        });
  for (size_t i = 1; i < streams.size(); ++i) {
    prepared.emplace_back(streams[i], [done] {
      done->wait();
      done->throw_failure();
    });
  }
}

// Operations that share communicators or streams, directly or through others. They run in one
// engine or become one node of a graph.
struct Component {
  std::shared_ptr<ProgressEngine> engine;  // null: the inline engine, or a node
  Streams streams;
  Events launch_events;
  bool has_calling_thread = false;
  std::vector<Graph::NodeOperation> captured;  // the operations of a node

  static bool is_capturing(const Ref<Stream>& stream) { return stream->capturing(); }
  bool capturing() const { return std::ranges::any_of(streams, is_capturing); }
  void check() const {
    if (!capturing()) return;
    if (!has_calling_thread && std::ranges::all_of(streams, is_capturing)) return;
    fail(abi::ncclInvalidUsage,
         "some streams of a group are capturing and others are not, although they share a "
         "communicator: either all or none of them must be capturing");
  }

  void add(const Ref<Stream>& stream) {
    if (!stream) {
      has_calling_thread = true;
    } else if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
      streams.push_back(stream);
    }
  }
  ProgressEngine& own_engine() {
    if (!engine) engine = std::make_shared<ProgressEngine>();
    return *engine;
  }
};

// Returns for each operation the index of the representative of its component (union-find).
std::vector<size_t> find_components(const std::vector<PendingOperation>& operations) {
  std::vector<size_t> parent(operations.size());
  std::iota(parent.begin(), parent.end(), size_t{0});
  const auto representative = [&parent](size_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  std::map<const void*, size_t> first_with;  // of a communicator or a stream
  for (size_t i = 0; i < operations.size(); ++i) {
    const void* comm = operations[i].comm.get();
    const void* stream = operations[i].stream.get();  // null: the calling thread counts as a stream
    for (const void* shared : {comm, stream}) {
      const size_t first = first_with.try_emplace(shared, i).first->second;
      parent[representative(i)] = representative(first);
    }
  }
  for (size_t i = 0; i < operations.size(); ++i) parent[i] = representative(i);
  return parent;
}

}  // namespace

void dispatch(const PendingOperation& operation, ProgressEngine& inline_engine) {
  if (operation.launch_event) operation.launch_event->record(operation.stream);
  if (operation.stream && operation.stream->capturing()) {
    return Capture::add_node(
        {operation.stream},
        std::vector<Graph::NodeOperation>{{operation.comm, operation.operation, operation.window}});
  }
  if (operation.stream) {
    const auto engine = std::make_shared<ProgressEngine>();
    engine->add(operation.comm, operation.operation, operation.window);
    engine->prepare();
    Stream::Prepared prepared = prepare_on(operation.stream, engine);
    const EnqueueLock lock({&operation.comm->order()});
    engine->take_sequences();
    return prepared.enqueue();
  }
  inline_engine.clear();
  inline_engine.add(operation.comm, operation.operation, operation.window);
  inline_engine.prepare();
  inline_engine.take_sequences();
  run_inline(inline_engine);
}

void dispatch(const std::vector<PendingOperation>& operations, ProgressEngine& inline_engine) {
  inline_engine.clear();
  const auto has_stream = [](const PendingOperation& operation) {
    return static_cast<bool>(operation.stream);
  };
  if (std::none_of(operations.begin(), operations.end(), has_stream)) {
    for (const PendingOperation& operation : operations) {
      inline_engine.add(operation.comm, operation.operation, operation.window);
      if (operation.launch_event) operation.launch_event->record({});
    }
    inline_engine.prepare();
    inline_engine.take_sequences();
    return run_inline(inline_engine);
  }

  const std::vector<size_t> component_of = find_components(operations);
  std::vector<Component> components(operations.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    Component& component = components[component_of[i]];
    component.add(operations[i].stream);
    if (operations[i].launch_event) component.launch_events.push_back(operations[i].launch_event);
  }
  for (const Component& component : components) component.check();
  for (size_t i = 0; i < operations.size(); ++i) {
    const PendingOperation& operation = operations[i];
    Component& component = components[component_of[i]];
    if (component.capturing()) {
      component.captured.emplace_back(operation.comm, operation.operation, operation.window);
      continue;
    }
    ProgressEngine& engine = component.has_calling_thread ? inline_engine : component.own_engine();
    engine.add(operation.comm, operation.operation, operation.window);
  }
  for (Component& component : components) {
    if (component.captured.empty()) continue;
    record_all(component.launch_events, component.streams[0]);
    Capture::add_node(component.streams, std::move(component.captured));
  }

  // All steps that can fail precede the first sequence number: a number without its operation would
  // block the communicator.
  inline_engine.prepare();
  OperationOrders orders;
  std::vector<Stream::Prepared> prepared;
  std::vector<std::shared_ptr<EventRecord>> earlier;  // before the calling thread's operations
  for (Component& component : components) {
    if (component.engine) {
      component.engine->prepare();
      component.engine->add_orders(orders);
      prepare_on_all(prepared, component.streams, component.engine, component.launch_events);
    } else if (component.has_calling_thread) {
      for (const Ref<Stream>& stream : component.streams)
        earlier.push_back(record_new_event(stream));
    }
  }
  {
    const EnqueueLock lock(std::move(orders));
    inline_engine.take_sequences();
    for (Component& component : components) {
      if (component.engine) component.engine->take_sequences();
    }
    for (Stream::Prepared& callback : prepared) callback.enqueue();
  }
  // The operations run even after a failure, because they have their numbers.
  std::optional<Error> failure;
  try {
    for (const auto& record : earlier) {
      record->wait();
      record->throw_failure();
    }
  } catch (...) {
    failure = current_error();
  }
  for (Component& component : components) {
    if (component.has_calling_thread) record_all(component.launch_events, {});
  }
  try {
    run_inline(inline_engine);
  } catch (...) {
    if (!failure) failure = current_error();
  }
  if (!failure) return;
  for (const Component& component : components) {
    if (!component.has_calling_thread) continue;
    for (const Ref<Stream>& stream : component.streams) stream->set_failure(*failure);
  }
  throw Error(*failure);
}

}  // namespace hostnccl
