// What a thread collects between the entry and the exit of group(): operations, checked and with
// their buffers held, and communicators to be made. Nothing reaches NCCL before the outermost group
// ends, so that an exception on the way leaves nothing half done. The recording of a plan is a
// group whose operations are kept instead of issued; a simulation asks how long they would take.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "core/window.h"
#include "python/objects/batch.h"

namespace pynccl::python {

class Group {
 public:
  // The group that this thread is in, or nullptr: one load where no thread is in one.
  [[gnu::always_inline]] static Group* active() {
    if (threads_.load(std::memory_order_relaxed) == 0) [[likely]]
      return nullptr;
    Group& group = of_this_thread();
    return group.marks_.empty() ? nullptr : &group;
  }
  static Group& of_this_thread();

  // What operations are added to.
  Batch& batch() { return batch_; }
  // The communicator is made at the end of the group, by begin; or, one that is there, changed.
  enum class Kind { kMake, kChange };
  void record(Kind kind, std::shared_ptr<Communicator> communicator,
              std::function<void(Communicator&)> begin);
  // The window is registered at the end of the group; buffer holds its memory until then.
  void record(std::shared_ptr<Window> window, py::object buffer);

  void enter();
  // Ends the innermost group: keeps what it collected for the outer one, or issues it. With failed,
  // drops it.
  void exit(bool failed);

  // The same for a recorder, which is the outermost group of its thread and gets what was
  // collected: a plan, or a simulation. Its name is for errors.
  struct Recorder {
    const char* name;
  };
  void enter(const Recorder& recorder);
  Batch exit(const Recorder& recorder, bool failed);

 private:
  struct Creation {
    Kind kind;
    std::shared_ptr<Communicator> communicator;
    std::function<void(Communicator&)> begin;
    void finish() const;
    void drop() const;
  };
  struct Registration {
    std::shared_ptr<Window> window;
    py::object buffer;
  };
  struct Mark {
    Batch::Mark batch;
    std::size_t creations, registrations;
  };

  void leave(bool failed);
  void issue();
  void create();
  void register_windows();

  inline static std::atomic<int> threads_ = 0;  // that are in a group

  std::vector<Mark> marks_;  // where each of the groups that are open began
  Batch batch_;
  std::vector<Creation> creations_;
  const Recorder* recorder_ = nullptr;
  std::vector<Registration> registrations_;
};

// Makes one communicator now, or at the end of the current group. The GIL is released while NCCL
// works.
void create(std::shared_ptr<Communicator> communicator, std::function<void(Communicator&)> begin);

// The same for a call that NCCL takes into a group and that changes a communicator (suspend).
void change(std::shared_ptr<Communicator> communicator, std::function<void(Communicator&)> begin);

}  // namespace pynccl::python
