#include "nccl/operation.h"

#include <map>
#include <string_view>
#include <thread>

#include "abi/nccl_plugin_types.h"
#include "driver/graph.h"
#include "driver/settings.h"

namespace cuda_double {
namespace {

// Whether a function reads and writes one block of count elements or one for each rank, and whether
// only the root does.
struct Blocks {
  std::string_view function;
  bool send_all, recv_all, only_root_sends, only_root_receives;
  int number = -1;        // the tuner's, or -1
  const char* name = "";  // the profiler's
};

constexpr Blocks kBlocks[] = {
    {"ncclAllReduce", false, false, false, false, kPluginAllReduce, "AllReduce"},
    {"ncclReduce", false, false, false, true, kPluginReduce, "Reduce"},
    {"ncclBroadcast", false, false, true, false, kPluginBroadcast, "Broadcast"},
    {"ncclBcast", false, false, true, false, kPluginBroadcast, "Broadcast"},
    {"ncclReduceScatter", true, false, false, false, kPluginReduceScatter, "ReduceScatter"},
    {"ncclAllGather", false, true, false, false, kPluginAllGather, "AllGather"},
    {"ncclAlltoAll", true, true, false, false},
    {"ncclGather", false, true, false, true},
    {"ncclScatter", true, false, true, false},
    {"ncclSend", false, false, false, false, -1, "Send"},
    {"ncclRecv", false, false, false, false, -1, "Recv"},
    {"ncclPutSignal", false, false, false, false},
};

constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // of ncclDataType_t

// The row of a call, or null if it has none or an unknown dtype.
const Blocks* blocks_of(const Arguments& arguments) {
  std::string_view name = arguments.function;
  if (name.ends_with("Config")) name.remove_suffix(6);
  if (arguments.dtype >= ncclNumTypes) return nullptr;
  for (const Blocks& blocks : kBlocks)
    if (blocks.function == name) return &blocks;
  return nullptr;
}

PluginOperation plugin_operation(const Communicator& communicator, const Arguments& arguments) {
  const Blocks* blocks = blocks_of(arguments);
  if (blocks == nullptr) return {};
  const size_t block = arguments.count * kSizes[arguments.dtype];
  const auto all = static_cast<size_t>(communicator.nranks);
  const size_t nbytes = blocks->send_all || blocks->recv_all ? all * block : block;
  return {blocks->number, blocks->name,    nbytes,        arguments.send,
          arguments.recv, arguments.count, arguments.peer};
}

void add_buffers(MemoryUse& use, const Communicator& communicator, const Arguments& arguments) {
  const Blocks* blocks = blocks_of(arguments);
  if (blocks == nullptr) return;
  const size_t block = arguments.count * kSizes[arguments.dtype];
  const auto all = static_cast<size_t>(communicator.nranks);
  const bool root = arguments.peer == communicator.rank;
  if (root || !blocks->only_root_sends)
    use.add(arguments.send, blocks->send_all ? all * block : block);
  if (arguments.recv != arguments.send && (root || !blocks->only_root_receives))
    use.add(arguments.recv, blocks->recv_all ? all * block : block);
}

// A kernel whose peer has died spins until the communicator is aborted. NCCL does not detect it.
void spin_for_dead_peers(const Communicator& communicator) {
  if (!dead_peers_spin()) return;
  wait_while([&] {
    return !communicator.aborted.load() && !communicator.revoked.load() && communicator.failed();
  });
}

// In a graph.
class Captured final : public Held {
 public:
  Captured(CommunicatorRef communicator, std::shared_ptr<PluginTask> task)
      : communicator_(std::move(communicator)), task_(std::move(task)) {
    communicator_->graphs.fetch_add(1);
  }
  ~Captured() override {
    communicator_->graphs.fetch_sub(1);
    if (communicator_->freed.load())  // it writes to the communicator (enqueue.cc:1528)
      report_violation("a graph is destroyed after a communicator of its operations was freed");
  }
  void before_launch() override {
    communicator_->plugins.launch({task_.get()});
    communicator_->pending.fetch_add(1);
  }
  void after_launch() override {
    communicator_->plugins.begin(*task_);
    spin_for_dead_peers(*communicator_);
    communicator_->plugins.end(*task_);
    communicator_->pending.fetch_sub(1);
  }

 private:
  CommunicatorRef communicator_;
  std::shared_ptr<PluginTask> task_;
};

}  // namespace

Operation::Operation(CommunicatorRef communicator, StreamRef stream, const Arguments& arguments)
    : communicator_(std::move(communicator)), stream_(std::move(stream)) {
  const std::string_view name = arguments.function;
  sends_ = name == "ncclSend";
  message_ = sends_ || name == "ncclRecv";
  collective_ = !message_ && !name.ends_with("Signal");
  peer_ = arguments.peer;
  communicator_->connect(message_ ? peer_ : -1);
  task_ =
      std::make_shared<PluginTask>(plugin_operation(*communicator_, arguments), Plugins::mask());
  if (capturing(*stream_)) {
    hold_in_capture(*stream_, std::make_shared<Captured>(communicator_, task_));
    return;
  }
  use_ = std::make_shared<MemoryUse>(std::string(name), communicator_->device);
  use_->defer();
  add_buffers(*use_, *communicator_, arguments);
}

void Operation::simulate() const { communicator_->plugins.choose(*task_, true); }

void Operation::issue(std::span<Operation> operations) {
  std::map<Communicator*, std::vector<PluginTask*>> launches;
  for (Operation& operation : operations) {
    operation.communicator_->plugins.choose(*operation.task_, false);
    if (operation.use_) launches[operation.communicator_.get()].push_back(operation.task_.get());
  }
  for (const auto& [communicator, tasks] : launches) communicator->plugins.launch(tasks);
  for (Operation& operation : operations) operation.finish();
}

void Operation::finish() {
  if (!use_) {
    // Measured for ncclAllReduce of NCCL 2.28 with CUDA 13.0, and assumed for the others.
    need_no_join(*stream_);
    return;
  }
  use_->issue();
  communicator_->pending.fetch_add(1);
  launch(*stream_, [communicator = communicator_, use = std::move(use_), task = task_] {
    communicator->plugins.begin(*task);
    spin_for_dead_peers(*communicator);
    take_time();
    use->end();
    communicator->plugins.end(*task);
    communicator->pending.fetch_sub(1);
  });
}

bool Operation::connects() const {
  return message_ ? !communicator_->has_begun(peer_, sends_)
                  : collective_ && !communicator_->called;
}

void Operation::connect() const {
  if (message_) communicator_->begin_message(peer_, sends_);
  if (collective_) communicator_->begin_collective();
}

void Operation::cancel() {
  if (use_) use_->cancel();
}

Group& Group::of_this_thread() {
  thread_local Group group;
  return group;
}

ncclResult_t Group::join(bool comm_blocking) {
  const int wanted = comm_blocking ? 1 : 0;
  if (depth > 0 && blocking >= 0 && blocking != wanted) {
    fail();
    return ncclInvalidArgument;
  }
  if (depth > 0) blocking = wanted;
  return ncclSuccess;
}

// The engine reports a call without a communicator.
void Group::fail() {
  of_this_thread().failed = true;
  fail_engine();
}

void Group::fail_engine() {
  nccl().ncclAllReduce(nullptr, nullptr, 0, ncclInt8, ncclSum, nullptr, nullptr);
}

bool Group::creates() const {
  const CommunicatorRef last = created.lock();
  return last && last->state() == ncclInProgress;
}

// Writes the handle of a child of a non-blocking communicator once the child is ready. The parent
// is in progress for a while longer.
static void follow(const Group::Creation& creation) {
  std::thread([creation] {
    Communicator& parent = *creation.parent;
    wait_while(
        [&] { return !parent.aborted.load() && creation.communicator->state() == ncclInProgress; });
    std::this_thread::sleep_for(
        std::chrono::duration<double>(setting("NCCL_DOUBLE_HANDLE_SECONDS")));
    if (!parent.aborted.load()) *creation.out = creation.communicator->handle();
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    wait_while([&] { return !parent.aborted.load() && std::chrono::steady_clock::now() < end; });
    parent.followed.fetch_sub(1);
  }).detach();
}

bool Group::begin_progress() {
  std::map<Communicator*, bool> all;  // whether it has messages
  for (const Operation& operation : operations) {
    bool& messages = all[operation.communicator().get()];
    messages = messages || operation.message();
  }
  bool continues = false;
  for (const auto& [communicator, messages] : all)
    continues = communicator->begin_progress(messages) || continues;
  if (continues && kNcclVersion >= 22800)
    for (const auto& [communicator, messages] : all)
      if (communicator->blocking && communicator->nranks > 1) communicator->stuck = true;
  return continues;
}

// All ranks of the group begin to connect before one waits, because they may wait for each other.
bool Group::connect() const {
  bool connected = true;
  for (const Operation& operation : operations) operation.connect();
  for (const Operation& operation : operations)
    connected = operation.communicator()->wait_connected() && connected;
  return connected;
}

ncclResult_t Group::settle_creations() {
  ncclResult_t result = ncclSuccess;
  for (const Creation& creation : creations) {
    if (creation.communicator->engine != nullptr && creation.parent) {
      follow(creation);
    } else if (creation.communicator->engine == nullptr && creation.child) {
      if (creation.parent) creation.parent->followed.fetch_sub(1);
      withdraw(creation.communicator->handle());
      *creation.out = nullptr;
    } else if (creation.communicator->engine == nullptr) {  // the caller must abort it
      creation.communicator->refused.store(ncclInvalidArgument);
    } else {
      *creation.out = creation.communicator->handle();
      if (creation.communicator->blocking) creation.communicator->learn();
      if (creation.communicator->creation_failed) result = ncclInvalidUsage;
    }
  }
  creations.clear();
  return result;
}

ncclResult_t Group::clear() {
  for (Operation& operation : operations) operation.cancel();
  operations.clear();
  for (const CommunicatorRef& communicator : communicators) communicator->calls.fetch_sub(1);
  communicators.clear();
  one_sided.clear();
  blocking = -1;
  failed = false;
  return settle_creations();
}

}  // namespace cuda_double
