// Defines when two C declarations have the same ABI. Our types are in pynccl::abi, those of the
// real headers at global scope, so named types are declared to be the same: static_checks.py
// specializes Same for each pair, and asserts its size, alignment and contents separately. The
// rules for derived types follow here.
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace pynccl::test {

template <class Ours, class Theirs>
struct Same : std::is_same<Ours, Theirs> {};

template <class Ours, class Theirs>
inline constexpr bool same = Same<Ours, Theirs>::value;

// Both pointees must be const, or neither.
template <class Ours, class Theirs>
struct Same<const Ours, const Theirs> : Same<Ours, Theirs> {};

template <class Ours, class Theirs>
struct Same<Ours*, Theirs*> : Same<Ours, Theirs> {};

template <class Ours, class Theirs, std::size_t n>
struct Same<Ours[n], Theirs[n]> : Same<Ours, Theirs> {};

template <class Function>
struct Signature;

template <class R, class... Parameters>
struct Signature<R(Parameters...)> {
  using Result = R;
  static constexpr std::size_t arity = sizeof...(Parameters);

  // The arity is checked separately. A parameter missing on one side is merely different here.
  struct Missing {};
  template <std::size_t i>
  using Parameter =
      std::tuple_element_t<(i < arity ? i : arity), std::tuple<std::type_identity<Parameters>...,
                                                               std::type_identity<Missing>>>;
};

template <class Ours, class Theirs>
inline constexpr bool sameArity = Signature<Ours>::arity == Signature<Theirs>::arity;

template <class Ours, class Theirs>
inline constexpr bool sameResult =
    same<typename Signature<Ours>::Result, typename Signature<Theirs>::Result>;

template <std::size_t i, class Ours, class Theirs>
inline constexpr bool sameParameter = same<typename Signature<Ours>::template Parameter<i>::type,
                                           typename Signature<Theirs>::template Parameter<i>::type>;

template <class Ours, class Theirs>
inline constexpr bool sameEnum =
    std::is_enum_v<Ours> && std::is_enum_v<Theirs> &&
    std::is_same_v<std::underlying_type_t<Ours>, std::underlying_type_t<Theirs>>;

template <class Type>
inline constexpr bool plainStruct =
    std::is_class_v<Type> && std::is_standard_layout_v<Type> && std::is_trivially_copyable_v<Type>;

template <class Type>
inline constexpr bool opaqueHandle =
    std::is_pointer_v<Type> && std::is_class_v<std::remove_pointer_t<Type>>;

constexpr bool sameValue(auto ours, auto theirs) {
  if constexpr (std::is_pointer_v<decltype(ours)>) {
    return (ours == nullptr) == (theirs == nullptr);
  } else {
    return ours == static_cast<decltype(ours)>(theirs);
  }
}

constexpr std::size_t roundUp(std::size_t size, std::size_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

}  // namespace pynccl::test
