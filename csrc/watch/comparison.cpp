#include "watch/comparison.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "comm/communicator.h"
#include "comm/observer.h"

namespace pynccl {
namespace {

FlightRecord record_of(const Operation& o) {
  FlightRecord record{};
  record.kind = plain(o.kind);
  record.dtype = o.dtype;
  record.op = o.op;
  record.root_or_peer = o.root_or_peer;
  record.count = o.count;
  return record;
}

// The collectives since the last comparison.
std::vector<std::pair<std::uint64_t, std::string>> since_last(Communicator& communicator) {
  const std::uint64_t every = communicator.check();
  const std::uint64_t last = communicator.deadlines().recorder().collectives();
  std::vector<std::pair<std::uint64_t, std::string>> before;
  if (every == 1) return before;
  for (const FlightRecord& record : communicator.deadlines().recorder().read_all())
    if (is_collective(record.kind) && record.number + every > last)
      before.emplace_back(record.number, record.call_text());
  return before;
}

// The comparisons of collectives that are due.
std::vector<Comparison::Item> due_collectives(const Comparison::Operations& operations) {
  struct Part {
    Comparison::Item item;
    std::uint64_t last;
  };
  std::vector<Part> parts;
  for (const auto& [communicator, operation] : operations) {
    if (communicator->check() == 0 || !is_collective(plain(operation->kind))) continue;
    auto part = std::find_if(parts.begin(), parts.end(), [&, own = communicator](const Part& one) {
      return one.item.communicator == own;
    });
    const std::string text = record_of(*operation).call_text();
    if (part == parts.end()) {
      const std::uint64_t number = communicator->deadlines().recorder().collectives() + 1;
      parts.push_back({{communicator, number, text, {}}, number});
    } else {
      part->item.text += ", " + text;
      ++part->last;
    }
  }
  std::vector<Comparison::Item> items;
  for (Part& part : parts) {
    const std::uint64_t every = part.item.communicator->check();
    if (part.last / every == (part.item.number - 1) / every) continue;
    part.item.before = since_last(*part.item.communicator);
    items.push_back(std::move(part.item));
  }
  return items;
}

std::vector<Comparison::Message> due_messages(const Comparison::Operations& operations) {
  std::map<std::tuple<Communicator*, OperationKind, int>, std::uint64_t> numbers;
  std::vector<Comparison::Message> messages;
  for (const auto& [communicator, operation] : operations) {
    const OperationKind kind = plain(operation->kind);
    if (communicator->check() == 0 || !is_message(kind)) continue;
    const int peer = operation->root_or_peer;
    std::uint64_t& number = numbers[{communicator, kind, peer}];
    if (number == 0) number = communicator->deadlines().recorder().messages(kind, peer);
    if (++number % communicator->check() != 0) continue;
    messages.push_back({communicator, kind == OperationKind::kSend, peer, number,
                        dtype_name(operation->dtype) + std::string(", count=") +
                            std::to_string(operation->count)});
  }
  return messages;
}

}  // namespace

// Compares operations outside groups. A group compares its operations together.
class Comparison::Sink final : public Observer {
 public:
  void before_operation(const OperationEvent& event) override {
    if (event.in_group || event.communicator.check() == 0) return;
    Operation compared = event.operation;
    compared.kind = event.kind;
    run({{&event.communicator, &compared}});
  }
};

void Comparison::observe() { Observers::add(*new Sink, Observers::kBefore); }

void Comparison::run(const Operations& operations) {
  const std::vector<Item> items = due_collectives(operations);
  const std::vector<Message> messages = due_messages(operations);
  if (exchange_ && !(items.empty() && messages.empty())) exchange_(items, messages);
}

}  // namespace pynccl
