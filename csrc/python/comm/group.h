// Group: collects the calls of a thread inside group(): checked operations with references to their
// buffers, and communicators, windows and device communicators to create. NCCL is called when the
// outermost group ends, so after an exception inside nothing has been issued. Plans and simulations
// are recorders: groups whose operations are handed over instead of issued.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "comm/device_communicator.h"
#include "comm/window.h"
#include "python/comm/batch.h"

namespace pynccl::python {

class Group {
 public:
  // The open group of this thread, or nullptr. A single load if no thread has one.
  [[gnu::always_inline]] static Group* active() {
    if (threads_.load(std::memory_order_relaxed) == 0) [[likely]]
      return nullptr;
    Group& group = of_this_thread();
    return group.marks_.empty() ? nullptr : &group;
  }
  static Group& of_this_thread();

  // The operations collected so far.
  Batch& batch() { return batch_; }

  // Objects that the end of the group creates or changes: begin() calls NCCL, finish() waits,
  // drop() cancels it.
  enum class Action { kCreate, kChange };
  struct PendingCommunicator {  // any thread can release it, with or without the GIL
    Action action;
    std::shared_ptr<Communicator> communicator;
    std::function<void(Communicator&)> create_or_change;

    Library& library() const { return communicator->library(); }
    void begin() const { create_or_change(*communicator); }
    void finish() const {
      action == Action::kCreate ? communicator->finish() : communicator->finish_change();
    }
    void drop() const {
      if (action == Action::kCreate) communicator->discard();
    }
  };

  // A Window or DeviceCommunicator.
  template <class Object>
  struct Pending {
    std::shared_ptr<Object> object;

    Library& library() const { return object->communicator()->library(); }
    void drop() const { object->cancel(); }
  };
  void record(PendingCommunicator communicator);
  void record(std::shared_ptr<Window> window);
  void record(std::shared_ptr<DeviceCommunicator> communicator);
  // Registers a function for the end of the outermost group. It is called with true after the
  // operations were issued, with false if they are dropped or fail.
  using AtEnd = std::function<void(bool issued)>;
  void at_end(AtEnd function);

  void enter();
  // Ends the innermost group. An inner group leaves its operations to the outer one, and the
  // outermost issues them. If failed, the group drops everything it collected.
  void exit(bool failed);

  // The same for a recorder (a plan or a simulation), which must be the outermost group of its
  // thread and receives the collected operations. The name is for error texts. A recorder that is
  // deleted without an exit, on any thread, drops the operations. Requires the GIL.
  struct Recorder {
    const char* name;
    Group* owner = nullptr;  // the group that it was entered in
    ~Recorder();
  };
  void enter(Recorder& recorder);
  Batch exit(const Recorder& recorder, bool failed);

 private:
  struct Mark {
    Batch::Mark batch;
    std::size_t communicators, windows, device_communicators, ends;
  };

  void refuse_in_recorder(const char* reason) const;
  void check_overlap();
  void leave(bool failed);
  void issue();
  void issue(const Batch& batch);

  inline static std::atomic<int> threads_ = 0;  // threads with an open group

  std::vector<Mark> marks_;  // the state at the beginning of each open group
  Batch batch_;
  std::vector<PendingCommunicator> communicators_;
  std::vector<Pending<Window>> windows_;
  std::vector<Pending<DeviceCommunicator>> device_communicators_;
  std::vector<AtEnd> ends_;
  const Recorder* recorder_ = nullptr;
};

// Creates or changes (suspend, resume) a communicator now, or at the end of the open group.
// Releases the GIL.
void create_or_change(Group::Action action, std::shared_ptr<Communicator> communicator,
                      std::function<void(Communicator&)> begin);

}  // namespace pynccl::python
