// Random sends and receives: all ranks draw the same plan, and each issues its part in a random
// order of its own, in groups, beside collectives.
#include <algorithm>
#include <cstdint>

#include "stress.h"

namespace stress {
namespace {

struct Message {
  int source;
  int destination;
  size_t count;
  uint32_t number;
};

uint32_t content(const Message& message, size_t index) {
  return message.number * 2654435761u + static_cast<uint32_t>(index);
}

std::vector<Message> make_plan(std::mt19937& random, int nranks) {
  constexpr size_t kCounts[] = {0, 1, 5, 300, 2048, 2049, 9000, 40000};
  std::vector<Message> plan(random() % 25 + 1);
  for (uint32_t i = 0; i < plan.size(); ++i) {
    plan[i] = {int(random() % unsigned(nranks)), int(random() % unsigned(nranks)),
               kCounts[random() % std::size(kCounts)], i + unsigned(random())};
  }
  return plan;
}

// The send or the receive of a message.
struct Call {
  const Message* message;
  bool sends;
  std::vector<uint32_t> data;
};

// A random order that keeps the order of the calls with the same source and destination.
std::vector<Call> shuffled(std::vector<Call> calls, std::mt19937& random) {
  std::vector<Call> order;
  while (!calls.empty()) {
    size_t pick = random() % calls.size();
    const Call& chosen = calls[pick];
    for (size_t i = 0; i < pick; ++i) {
      if (calls[i].sends == chosen.sends && calls[i].message->source == chosen.message->source &&
          calls[i].message->destination == chosen.message->destination) {
        pick = i;
        break;
      }
    }
    order.push_back(std::move(calls[pick]));
    calls.erase(calls.begin() + std::ptrdiff_t(pick));
  }
  return order;
}

void exchange(int rank, int nranks, ncclComm_t comm, const std::vector<Message>& plan,
              std::mt19937& own_random, const std::vector<cudaStream_t>& streams) {
  std::vector<Call> calls;
  for (const Message& message : plan) {
    if (message.source == rank) {
      std::vector<uint32_t> data(message.count);
      for (size_t i = 0; i < data.size(); ++i) data[i] = content(message, i);
      calls.push_back({&message, true, std::move(data)});
    }
    if (message.destination == rank) {
      calls.push_back({&message, false, std::vector<uint32_t>(message.count)});
    }
  }
  calls = shuffled(std::move(calls), own_random);
  int32_t sum = rank;
  const auto stream = [&] { return streams[own_random() % streams.size()]; };
  OK(ncclGroupStart());
  const size_t collective_at = own_random() % (calls.size() + 1);
  for (size_t i = 0; i <= calls.size(); ++i) {
    if (i == collective_at) {
      OK(ncclAllReduce(&sum, &sum, 1, ncclInt32, ncclSum, comm, stream()));
    }
    if (i == calls.size()) break;
    Call& call = calls[i];
    if (call.sends) {
      OK(ncclSend(call.data.data(), call.data.size(), ncclUint32, call.message->destination, comm,
                  stream()));
    } else {
      OK(ncclRecv(call.data.data(), call.data.size(), ncclUint32, call.message->source, comm,
                  stream()));
    }
  }
  OK(ncclGroupEnd());
  for (const cudaStream_t used : streams) OK(hostStreamSynchronize(used));
  CHECK(sum == nranks * (nranks - 1) / 2);
  for (const Call& call : calls) {
    for (size_t i = 0; i < call.data.size() && !call.sends; ++i) {
      CHECK(call.data[i] == content(*call.message, i));
    }
  }
}

void random_groups() {
  for (const int nranks : {1, 2, 4}) {
    with_communicators(nranks, [&](int rank, ncclComm_t comm) {
      std::mt19937 shared(unsigned(nranks) * 17u);
      std::mt19937 own(unsigned(rank) + 5u);
      const cudaStream_t first = new_stream();
      const cudaStream_t second = new_stream();
      for (int round = 0; round < 80; ++round) {
        std::vector<cudaStream_t> streams{nullptr};
        if (round % 3 == 1) streams = {first};
        if (round % 3 == 2) streams = {first, nullptr, second};
        exchange(rank, nranks, comm, make_plan(shared, nranks), own, streams);
      }
      OK(hostStreamDestroy(first));
      OK(hostStreamDestroy(second));
    });
  }
}

}  // namespace

void messages() { random_groups(); }

}  // namespace stress
