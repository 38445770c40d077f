#include "hostnccl/kernels/reduce.h"

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "hostnccl/kernels/small_floats.h"

namespace hostnccl {
namespace {

using pynccl::abi::ncclDataType_t;

// The default floating-point mode for the calling thread, during a scope: IEEE 754's round to
// nearest even, preserve subnormals, no traps. The caller may have other modes, set by
// torch.set_flush_denormal or by a library built with -ffast-math.
class FloatEnvironment {
 public:
  FloatEnvironment() : saved_(get()) {
    if (is_changed()) set(kDefault);
  }
  ~FloatEnvironment() {
    if (is_changed()) set(saved_);
  }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  using Register = uint32_t;
  static constexpr Register kDefault = 0x1f80;
  static constexpr Register kStatus = 0x3f;  // sticky exception flags
  static Register get() { return __builtin_ia32_stmxcsr(); }
  static void set(Register value) { __builtin_ia32_ldmxcsr(value); }
#elif defined(__aarch64__)
  using Register = uint64_t;
  static constexpr Register kDefault = 0;
  static constexpr Register kStatus = 0;  // in another register
  static Register get() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set(Register value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
#error "FloatEnvironment supports x86-64 and aarch64 only"
#endif

  bool is_changed() const { return (saved_ & ~kStatus) != kDefault; }

  const Register saved_;
};

struct Isa {
  const char* name;
  ReduceFunction* reduce;
  bool (*is_supported)();
};

#if defined(__x86_64__)
bool has_f16c() {  // not known to every compiler's __builtin_cpu_supports
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && has_f16c(); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

constexpr Isa kIsas[] = {
// best first
#if defined(__x86_64__)
    {"avx512", avx512::reduce, has_avx512},
    {"avx2", avx2::reduce, has_avx2},
#endif
    {"baseline", baseline::reduce, [] { return true; }},
};

const Isa& choose_isa() {
  const char* const requested = std::getenv("HOSTNCCL_ISA");
  const Isa* best = nullptr;
  for (const Isa& isa : kIsas) {
    if (!isa.is_supported()) continue;
    if (requested != nullptr && std::strcmp(requested, isa.name) == 0) return isa;
    if (best == nullptr) best = &isa;
  }
  return *best;
}

const Isa& chosen_isa() {
  static const Isa& isa = choose_isa();
  return isa;
}

template <typename T>
T load(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

template <typename Small>
Scalar load_small(const void* address) {
  return {.f32 = Small::decode(load<typename Small::Bits>(address))};
}

}  // namespace

void reduce(void* dst, const void* const* sources, const Scalar* scalars, int nsources,
            size_t count, ncclDataType_t dtype, ReduceKind kind) {
  if (count == 0) return;
  if (nsources == 1 && scalars == nullptr) {
    if (dst != sources[0]) std::memcpy(dst, sources[0], count * element_size(dtype));
    return;
  }
  const FloatEnvironment environment;
  chosen_isa().reduce(dst, sources, scalars, nsources, count, dtype, kind);
}

Scalar load_scalar(const void* address, ncclDataType_t dtype) {
  switch (dtype) {
    case pynccl::abi::ncclInt8:
      return {.i64 = load<int8_t>(address)};
    case pynccl::abi::ncclUint8:
      return {.u64 = load<uint8_t>(address)};
    case pynccl::abi::ncclInt32:
      return {.i64 = load<int32_t>(address)};
    case pynccl::abi::ncclUint32:
      return {.u64 = load<uint32_t>(address)};
    case pynccl::abi::ncclInt64:
      return {.i64 = load<int64_t>(address)};
    case pynccl::abi::ncclUint64:
      return {.u64 = load<uint64_t>(address)};
    case pynccl::abi::ncclFloat16:
      return load_small<Float16>(address);
    case pynccl::abi::ncclFloat32:
      return {.f32 = load<float>(address)};
    case pynccl::abi::ncclFloat64:
      return {.f64 = load<double>(address)};
    case pynccl::abi::ncclBfloat16:
      return load_small<Bfloat16>(address);
    case pynccl::abi::ncclFloat8e4m3:
      return load_small<Float8e4m3>(address);
    case pynccl::abi::ncclFloat8e5m2:
      return load_small<Float8e5m2>(address);
    case pynccl::abi::ncclNumTypes:
      break;
  }
  return {};
}

const char* kernel_isa() { return chosen_isa().name; }

}  // namespace hostnccl
