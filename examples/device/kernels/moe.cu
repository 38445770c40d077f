// Dispatch and combine of a mixture of experts. The tokens of each rank are sorted by the rank of
// their expert, and are put there, as many as there are for each rank: an uneven all_to_all without
// a preceding exchange of counts. The experts' results are put back to the same positions.
//
// Each source has its own part of the receive buffer, so ranks do not wait for each other's counts,
// and the order is deterministic. On GPUs: any number of blocks, the same in all calls, all of them
// running at the same time.
#include <pynccl/device.h>

// The header that a source writes before its tokens.
struct MoeHeader {
  int count;   // tokens that follow
  int origin;  // the place of the first of them in the sorted tokens of the source
};

struct MoeArguments {
  ncclDevComm comm;
  ncclWindow_t window;
  size_t headers;       // bytes: MoeHeader [ranks] in the window
  size_t received;      // bytes: float [ranks, capacity, width] in the window
  size_t combined;      // bytes: float [tokens, width] in the window
  size_t flags;         // bytes: uint32 [2, ranks] in the window, 0 before the first call
  const float* in;      // [tokens, width]
  const int* order;     // [tokens]: the tokens sorted by rank, as argsort gives
  const int* begin;     // [ranks + 1]: where the tokens for each rank begin in `order`
  const float* weight;  // [tokens]: of the expert's result
  const float* result;  // [ranks, capacity, width]: the experts' results, of moe_combine
  float* out;           // [tokens, width], of moe_combine
  int tokens, width;
  int capacity;    // tokens of one source; a source must not send more to one rank
  uint32_t epoch;  // 1 in the first dispatch and combine, and one more in each pair of them
};

// On return, `headers` and `received` hold the tokens for this rank.
PYNCCL_KERNEL(moe_dispatch, MoeArguments, block, a) {
  using namespace pynccl::device;
  const int n = size(a.comm);
  const int me = rank(a.comm);
  const size_t bytes = a.width * sizeof(float);
  for (int i = 0; i < n; ++i) {
    const int to = (me + i) % n;
    const int origin = a.begin[to];
    const int count = a.begin[to + 1] - origin;
    if (block.index() == 0 && block.thread() == 0) {
      lsa<MoeHeader>(a.window, a.headers, to)[me] = {count, origin};
    }
    for (int t = block.index(); t < count; t += block.count()) {
      const size_t slot = static_cast<size_t>(me) * a.capacity + t;
      put(block, a.window, a.received + slot * bytes, to,
          a.in + static_cast<size_t>(a.order[origin + t]) * a.width, bytes);
    }
    add_signal(block, a.comm, to, lsa<uint32_t>(a.window, a.flags, to) + me);
  }
  const uint32_t* flags = local<const uint32_t>(a.window, a.flags);
  for (int from = 0; from < n; ++from) {
    if (!wait(block, a.comm, flags + from, a.epoch * block.count())) return;
  }
}

// out[token] = weight[token] * the result of its expert. The source of each token reads it before
// its next dispatch, which the peers wait for, so no barrier is needed.
PYNCCL_KERNEL(moe_combine, MoeArguments, block, a) {
  using namespace pynccl::device;
  const int n = size(a.comm);
  const int me = rank(a.comm);
  const size_t bytes = a.width * sizeof(float);
  const MoeHeader* headers = local<const MoeHeader>(a.window, a.headers);
  for (int i = 0; i < n; ++i) {
    const int to = (me + i) % n;
    const MoeHeader header = headers[to];
    for (int t = block.index(); t < header.count; t += block.count()) {
      put(block, a.window, a.combined + (header.origin + t) * bytes, to,
          a.result + (static_cast<size_t>(to) * a.capacity + t) * a.width, bytes);
    }
    add_signal(block, a.comm, to, lsa<uint32_t>(a.window, a.flags, to) + n + me);
  }
  const uint32_t* flags = local<const uint32_t>(a.window, a.flags) + n;
  for (int from = 0; from < n; ++from) {
    if (!wait(block, a.comm, flags + from, a.epoch * block.count())) return;
  }
  const float* combined = local<const float>(a.window, a.combined);
  for (int t = block.index(); t < a.tokens; t += block.count()) {
    const size_t token = a.order[t];
    for (int j = block.thread(); j < a.width; j += block.threads()) {
      a.out[token * a.width + j] = a.weight[token] * combined[static_cast<size_t>(t) * a.width + j];
    }
  }
}
