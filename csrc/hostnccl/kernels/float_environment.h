// FloatEnvironment: sets the default floating-point mode of the calling thread.
#pragma once

#include <cstdint>

namespace hostnccl {

// Sets IEEE 754's defaults during its lifetime: round to nearest even, preserve subnormals, no
// traps. The caller may use other modes, set by torch.set_flush_denormal or a library built with
// -ffast-math.
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
  static constexpr Register kStatus = 0;  // kept in another register
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

}  // namespace hostnccl
