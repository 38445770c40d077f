#include "hostnccl/communicator/waits.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "common/per_process.h"
#include "hostnccl/base/interrupt.h"
#include "hostnccl/base/params.h"

namespace hostnccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<WaitingThread*> threads;
};

std::atomic<uint64_t> last_number{0};

}  // namespace

struct ThisThread {
  std::shared_ptr<WaitingThread> thread;
  ~ThisThread() {
    if (thread) thread->ended_ = true;
  }
  static ThisThread& get() {
    thread_local ThisThread instance;
    return instance;
  }
};

WaitingThread& WaitingThread::current() {
  std::shared_ptr<WaitingThread>& thread = ThisThread::get().thread;
  if (!thread) [[unlikely]]
    thread = std::make_shared<WaitingThread>();
  return *thread;
}

std::shared_ptr<WaitingThread> WaitingThread::share_current() {
  current();
  return ThisThread::get().thread;
}

WaitingThread::WaitingThread() : number_(++last_number) { enroll(); }

WaitingThread::~WaitingThread() {
  auto& all = common::per_process<Registry>();
  const std::lock_guard lock(all.mutex);
  std::erase(all.threads, this);
}

void WaitingThread::enroll() {
  auto& all = common::per_process<Registry>();
  const std::lock_guard lock(all.mutex);
  generation_ = fork_generation();
  all.threads.push_back(this);
}

std::shared_ptr<WaitingThread> WaitingThread::make_worker() {
  auto worker = std::make_shared<WaitingThread>();
  worker->worker_ = true;
  return worker;
}

void WaitingThread::adopt(std::shared_ptr<WaitingThread> worker) {
  ThisThread::get().thread = std::move(worker);
}

void WaitingThread::set_idle() { state_.store(State::Idle, std::memory_order_release); }

void WaitingThread::set_running() {
  State idle = State::Idle;
  state_.compare_exchange_strong(idle, State::Running);
}

void WaitingThread::sleep(std::span<const Wait> waits) {
  if (generation_ != fork_generation()) [[unlikely]] {
    std::construct_at(&mutex_);  // another thread may have owned it at the fork
    enroll();
  }
  const std::lock_guard lock(mutex_);
  waits_.assign(waits.begin(), waits.end());
  since_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  state_.store(State::Asleep, std::memory_order_release);
}

void WaitingThread::wake() {
  const std::lock_guard lock(mutex_);
  state_.store(State::Running, std::memory_order_release);
  waits_.clear();
}

void WaitingThread::visit_waits(const Visitor& visit) {
  auto& all = common::per_process<Registry>();
  const std::lock_guard lock(all.mutex);
  for (const WaitingThread* thread : all.threads) {
    const std::lock_guard thread_lock(thread->mutex_);
    for (const Wait& wait : thread->waits_) visit(thread->number(), wait);
  }
}

std::optional<int64_t> WaitingThread::all_asleep(const Visitor& visit) {
  // A thread that falls asleep later may have woken one that was already checked.
  const int64_t began = Clock::now().time_since_epoch().count();
  int64_t since = 0;
  auto& all = common::per_process<Registry>();
  const std::lock_guard lock(all.mutex);
  for (const WaitingThread* thread : all.threads) {
    if (!thread->matters()) continue;
    const std::lock_guard thread_lock(thread->mutex_);
    const State state = thread->state_.load(std::memory_order_acquire);
    if (state == State::Idle) continue;
    const auto met = [](const Wait& wait) { return wait.condition.met(); };
    if (state == State::Running || thread->asleep_since() > began ||
        std::ranges::any_of(thread->waits_, met))
      return std::nullopt;
    since = std::max(since, thread->asleep_since());
    for (const Wait& wait : thread->waits_) visit(thread->number(), wait);
  }
  return since;
}

void sleep_in_process(const WaitCondition& condition) {
  if (condition.met()) return;
  const Sleeping sleeping({condition});
  sleep_until(condition, [](bool) { check_interrupt(); });
}

namespace {

constexpr int kMaxWaitsOfThread = 4;              // that are published
constexpr size_t kMaxReasons = 4;                 // in a text
constexpr int64_t kFailureTime = 60'000'000'000;  // ns for which a failure is reported
const std::string kPrefix = "deadlock: ";         // of the error text

int64_t now() { return Clock::now().time_since_epoch().count(); }

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : "; ") + text;
  return all;
}

using Processes = std::map<ProcessId, ProcessWaits>;
using ProcessSet = std::set<ProcessId>;

// The largest set of known processes in which every thread waits for a process of the set.
ProcessSet deadlocked(const Processes& known) {
  ProcessSet set;
  for (const auto& [process, waits] : known) set.insert(process);
  const auto can_continue = [&set](const ProcessWaits& process) {
    std::map<uint64_t, bool> stuck;  // by thread
    for (const PublishedWait& wait : process.all())
      stuck[wait.thread] = stuck[wait.thread] || set.contains(wait.owner);
    return std::ranges::any_of(stuck, [](const auto& thread) { return !thread.second; });
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [process, waits] : known)
      if (set.contains(process) && can_continue(waits)) changed = set.erase(process) != 0;
  }
  return set;
}

// The chain of waits from a process on, until a process repeats. The text of a cycle begins with
// its lowest rank, so all processes report the same text.
std::string chain_text(const Processes& known, const ProcessSet& set, const ProcessId first) {
  ProcessId process = first;
  std::vector<const PublishedWait*> chain;
  std::set<const PublishedWait*> used;
  const auto next = [&]() -> const PublishedWait* {
    const PublishedWait* within_process = nullptr;
    for (const PublishedWait& wait : known.at(process).all()) {
      if (!set.contains(wait.owner) || used.contains(&wait) || wait.text[0] == '\0') continue;
      if (wait.owner != process) return &wait;
      if (within_process == nullptr) within_process = &wait;
    }
    return within_process;
  };
  ProcessSet visited;
  while (const PublishedWait* wait = next()) {
    if (!visited.insert(process).second && wait->owner != process) break;
    chain.push_back(wait);
    used.insert(wait);
    process = wait->owner;
  }
  if (process == first)
    std::ranges::rotate(chain, std::ranges::min_element(chain, {}, &PublishedWait::rank));
  std::string text;
  for (const PublishedWait* wait : chain)
    text += (text.empty() ? "" : "; ") + std::string(wait->text);
  return text.empty() ? "this process waits for its own work" : text;
}

class Detector {
 public:
  void add(std::shared_ptr<Segment> segment, int rank) {
    const std::lock_guard lock(mutex_);
    members_.push_back({std::move(segment), rank});
  }
  void remove(const Segment& segment, int rank) {
    const std::lock_guard lock(mutex_);
    std::erase_if(members_, [&](const Member& one) {
      return one.segment.get() == &segment && one.rank == rank;
    });
  }

  void note_failure(const Segment& segment, int own_rank, const std::string& label,
                    const Error& error) {
    if (stable_ == 0) return;
    const std::lock_guard lock(mutex_);
    const bool is_deadlock = error.text().starts_with(kPrefix);
    if (is_deadlock) pass_on(error);
    const std::string rank = segment.name_of(own_rank);
    failure_ = ProcessWaits{};
    failure_->process = self_;
    failure_->since = failure_->confirmed = now();
    failure_->count = 1;
    failure_->waits[0].set_text(error.text().starts_with(rank)
                                    ? error.text()
                                    : rank + " has failed in communicator " + label + ": " +
                                          error.text());
    if (!is_deadlock) publish({*failure_});
  }

  std::string reasons(std::vector<ProcessId> processes) const {
    if (stable_ == 0) return "";
    const std::lock_guard lock(mutex_);
    return reasons_locked(std::move(processes));
  }

  std::string reasons_of_this_process() const {
    if (stable_ == 0) return "";
    const std::lock_guard lock(mutex_);
    std::vector<std::string> texts;
    std::vector<ProcessId> owners;
    WaitingThread::visit_waits([&](uint64_t thread, const Wait& wait) {
      if (wait.comm == nullptr || wait.condition.met()) return;
      const PublishedWait described = describe(thread, wait);
      texts.emplace_back(described.text);
      owners.push_back(described.owner);
    });
    if (texts.empty() && failure_ && is_recent_failure(*failure_))
      texts.emplace_back(failure_->waits[0].text);
    std::string text = joined(texts);
    if (const std::string more = reasons_locked(owners); !more.empty()) text += "; " + more;
    return text;
  }

  std::optional<Error> check(int64_t asleep_since) {
    if (stable_ == 0) return std::nullopt;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return std::nullopt;
    if (const int64_t time = now(); time >= next_look_) {
      next_look_ = time + stable_ / 8;
      look(time);
    }
    if (!found_ || asleep_since > found_since_) return std::nullopt;
    return found_;
  }

 private:
  struct Member {
    std::shared_ptr<Segment> segment;
    int rank;
  };

  // Fails the communicators in which ranks wait for this process.
  void pass_on(const Error& error) const {
    for (const Member& member : members_) {
      for (int rank = 0; rank < member.segment->nranks(); ++rank) {
        for (const ProcessWaits& process : member.segment->rank_state(rank).waits.read()) {
          if (!is_current(process, now())) continue;
          for (const PublishedWait& wait : process.all())
            if (wait.owner == self_ && wait.identity == member.segment->identity())
              member.segment->fail(error);
        }
      }
    }
  }

  // Whether the process confirmed its waits recently. A stopped process does not.
  bool is_current(const ProcessWaits& process, int64_t time) const {
    return process.confirmed >= time - stable_ / 2;
  }
  static bool is_failure(const ProcessWaits& process) {
    return process.count == 1 && process.waits[0].owner == ProcessId{};
  }
  static bool is_recent_failure(const ProcessWaits& process) {
    return is_failure(process) && process.confirmed >= now() - kFailureTime;
  }

  std::string reasons_locked(std::vector<ProcessId> processes) const {
    std::vector<std::string> texts;
    Processes heard;
    for (size_t i = 0; i < processes.size() && texts.size() < kMaxReasons; ++i) {
      const ProcessId process = processes[i];
      if (process == self_) continue;
      read_board(process, heard);
      const auto found = heard.find(process);
      if (found == heard.end()) continue;
      const ProcessWaits& waits = found->second;
      if (!is_recent_failure(waits) && !is_current(waits, now())) continue;
      for (const PublishedWait& wait : waits.all()) {
        if (wait.text[0] != '\0') texts.emplace_back(wait.text);
        if (std::ranges::find(processes, wait.owner) == processes.end())
          processes.push_back(wait.owner);
      }
    }
    return joined(texts);
  }

  void look(int64_t time) {
    // The other processes of the deadlock may still have to read the waits of this process.
    if (found_ && time < found_at_ + stable_ / 2) return;
    found_.reset();
    std::optional<ProcessWaits> own = waits_of_this_process(time);
    if (!own) return;
    Processes known = reachable(*own);
    publish(*own, known);
    // All slept at this moment, and for some time afterwards, in which a thread that had not used a
    // communicator before may have appeared.
    const int64_t moment = time - stable_;
    std::erase_if(known, [&](const auto& process) {
      return process.second.since > moment || !is_current(process.second, time);
    });
    const ProcessSet set = deadlocked(known);
    if (!set.contains(own->process)) return;
    found_ = Error(abi::ncclInvalidUsage, kPrefix + chain_text(known, set, own->process));
    found_since_ = own->since;
    found_at_ = time;
    fail_communicators(known, set);
  }

  std::optional<ProcessWaits> waits_of_this_process(int64_t time) const {
    ProcessWaits own{};
    own.process = self_;
    own.confirmed = time;
    bool complete = true;
    std::map<uint64_t, int> of_thread;
    const auto since = WaitingThread::all_asleep([&](uint64_t thread, const Wait& wait) {
      // One wait that lasts is enough to prevent the thread from continuing.
      if (++of_thread[thread] > kMaxWaitsOfThread) return;
      complete = complete && own.count < kPublishedWaits;
      if (complete) own.waits[own.count++] = describe(thread, wait);
    });
    if (!since || !complete || own.count == 0) return std::nullopt;
    own.since = *since;
    return own;
  }

  PublishedWait describe(uint64_t thread, const Wait& wait) const {
    PublishedWait published{};
    published.thread = thread;
    published.owner = self_;
    if (wait.comm != nullptr) wait.comm->describe(wait, published);
    return published;
  }

  // Fails the communicators of this process in which ranks of the set wait. If there are none, the
  // other processes detect the deadlock themselves.
  void fail_communicators(const Processes& known, const ProcessSet& set) const {
    for (const ProcessId& process : set) {
      for (const PublishedWait& wait : known.at(process).all()) {
        for (const Member& member : members_)
          if (member.segment->identity() == wait.identity) member.segment->fail(*found_);
      }
    }
  }

  // The published waits of the processes that this one waits for, directly or through others.
  Processes reachable(const ProcessWaits& own) const {
    Processes known{{own.process, own}};
    Processes heard;  // from their boards, which include waits of others
    std::vector<ProcessId> next{own.process};
    while (!next.empty()) {
      const ProcessWaits process = known.at(next.back());
      next.pop_back();
      for (const PublishedWait& wait : process.all()) {
        if (known.contains(wait.owner)) continue;
        read_board(wait.owner, heard);
        const auto found = heard.find(wait.owner);
        if (found == heard.end()) continue;
        known.insert(*found);
        next.push_back(wait.owner);
      }
    }
    return known;
  }

  // Adds the waits that a process has published, if it shares a communicator with this one.
  void read_board(const ProcessId& process, Processes& heard) const {
    for (const Member& member : members_) {
      for (int rank = 0; rank < member.segment->nranks(); ++rank) {
        if (member.segment->process(rank) != process) continue;
        for (const ProcessWaits& one : member.segment->rank_state(rank).waits.read()) {
          const auto [entry, added] = heard.try_emplace(one.process, one);
          if (!added && entry->second.confirmed < one.confirmed) entry->second = one;
        }
        break;  // its ranks publish the same waits, on all communicators
      }
    }
  }

  void publish(const ProcessWaits& own, const Processes& known) const {
    std::vector<ProcessWaits> all{own};
    for (const auto& [process, waits] : known)
      if (process != own.process && all.size() < WaitBoard::kProcesses) all.push_back(waits);
    publish(all);
  }
  void publish(const std::vector<ProcessWaits>& all) const {
    for (const Member& member : members_) member.segment->rank_state(member.rank).waits.write(all);
  }

  const ProcessId self_ = this_process();
  mutable std::mutex mutex_;
  std::vector<Member> members_;
  const int64_t stable_ = static_cast<int64_t>(param_number(ParamId::DeadlockMs)) * 1'000'000;
  std::optional<ProcessWaits> failure_;  // the last one of this process
  int64_t next_look_ = 0;
  std::optional<Error> found_;  // for threads that have slept since found_since_
  int64_t found_since_ = 0;
  int64_t found_at_ = 0;
};

Detector& detector() { return common::per_process<Detector>(); }

}  // namespace

void Deadlocks::add(std::shared_ptr<Segment> segment, int rank) {
  detector().add(std::move(segment), rank);
}

void Deadlocks::remove(const Segment& segment, int rank) { detector().remove(segment, rank); }

void Deadlocks::note_failure(const Segment& segment, int rank, const std::string& label,
                             const Error& error) {
  detector().note_failure(segment, rank, label, error);
}

std::string Deadlocks::reasons(const std::vector<ProcessId>& processes) {
  return detector().reasons(processes);
}

std::string Deadlocks::reasons_of_this_process() { return detector().reasons_of_this_process(); }

std::optional<Error> Deadlocks::check() {
  return detector().check(WaitingThread::current().asleep_since());
}

}  // namespace hostnccl
