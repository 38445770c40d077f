// RawCall: a function of nccl.h as a Python method of Library, generated from its parameters.
// Results other than ncclSuccess and ncclInProgress are raised. Values that C returns through
// pointers are return values.
#pragma once

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "comm/communicator.h"
#include "python/call/fastcall.h"
#include "python/call/gil.h"
#include "python/raw/raw_params.h"

namespace pynccl::python {

template <class Entry>
class RawCall {
  using Params = typename Entry::Params;
  static constexpr std::size_t kCount = std::tuple_size_v<Params>;
  using Indices = std::make_index_sequence<kCount>;

  template <std::size_t I>
  using Param = std::tuple_element_t<I, Params>;

 public:
  static PyObject* method(PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                          PyObject* kwnames) {
    return guarded([&] { return call(unwrap<Library>(self), args, nargs, kwnames, Indices()); });
  }

  // "ncclCommCount($self, comm)" and the C signature, for inspect.signature and help().
  static std::string doc() {
    std::string text = std::string(Entry::name) + "($self";
    each([&]<std::size_t I>() {
      if constexpr (Param<I>::visible) text += ", " + std::string(reference(Entry::names[I], 0));
    });
    return text + ")\n--\n\n" + Entry::declaration + "\n\nNCCL " + version_text(Entry::since) +
           " and newer.";
  }

 private:
  template <class Body>
  static void each(Body&& body) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (body.template operator()<I>(), ...);
    }(Indices());
  }

  static constexpr auto kVisible = []<std::size_t... I>(std::index_sequence<I...>) {
    constexpr std::size_t count = (0 + ... + std::size_t{Param<I>::visible});
    std::array<std::size_t, count> indices{};
    std::size_t next = 0;
    ((Param<I>::visible ? void(indices[next++] = I) : void()), ...);
    return indices;
  }(Indices());

  using VisibleSignature = Signature<kVisible.size()>;
  using VisibleNames = typename VisibleSignature::Names;

  static const VisibleNames& names() {
    static const VisibleNames interned = [] {
      VisibleNames names{};
      for (std::size_t i = 0; i < kVisible.size(); ++i)
        names[i] = intern(reference(Entry::names[kVisible[i]], 0));
      return names;
    }();
    return interned;
  }

  // The argument of parameter I; nullptr if it is not visible.
  template <std::size_t I>
  static PyObject* value(PyObject* const* visible) {
    constexpr auto found = std::find(kVisible.begin(), kVisible.end(), I);
    if constexpr (found == kVisible.end())
      return nullptr;
    else
      return visible[found - kVisible.begin()];
  }

  template <std::size_t... I>
  static PyObject* call(Library& library, PyObject* const* args, Py_ssize_t nargs,
                        PyObject* kwnames, std::index_sequence<I...>) {
    static const VisibleSignature signature(Entry::name, names());
    typename VisibleSignature::Values values;
    PyObject* const* visible = signature.parse(args, nargs, kwnames, values);

    Params params;
    [[maybe_unused]] const CallArguments arguments{library, names(), visible};
    (std::get<I>(params).load(Entry::names[I], value<I>(visible), arguments), ...);
    const auto function = library.nccl<Entry::member>();
    const auto invoke = [&] {
      const GilReleased released;
      return function(std::get<I>(params).argument()...);
    };
    if constexpr (kGroupLevel < 0) RawGroup::end();

    using Result = typename Entry::Result;
    if constexpr (std::is_void_v<Result>) {
      invoke();
      Py_RETURN_NONE;
    } else if constexpr (std::is_same_v<Result, ncclResult_t>) {
      const ncclResult_t result = invoke();
      if (result != ncclSuccess && result != ncclInProgress)
        throw_nccl(library, result, Entry::name, nullptr, -1, __FILE__, __LINE__);
      if constexpr (kGroupLevel > 0) RawGroup::start();
      if constexpr ((0 + ... + int{Param<I>::returned}) == 0) {
        Py_RETURN_NONE;
      } else {
        py::list returned;
        (append<I>(returned, params), ...);
        if (returned.size() == 1) return py::object(returned[0]).release().ptr();
        return py::tuple(returned).release().ptr();
      }
    } else {
      return to_python(invoke()).release().ptr();
    }
  }

  template <std::size_t I>
  static void append(py::list& returned, Params& params) {
    if constexpr (std::is_same_v<Param<I>, ByteBuffer> || std::is_same_v<Param<I>, Strings>) {
      // The last part of the name is the output parameter that contains the length.
      const auto length_name = reference(Entry::names[I], -1);
      std::size_t length = 0;
      each([&]<std::size_t J>() {
        if constexpr (std::is_same_v<Param<J>, Out<int>>)
          if (Entry::names[J] == length_name)
            length = static_cast<std::size_t>(std::get<J>(params).value);
      });
      returned.append(std::get<I>(params).result(length));
    } else if constexpr (Param<I>::returned) {
      returned.append(std::get<I>(params).result());
    }
  }

  static constexpr int kGroupLevel = [] {
    constexpr std::string_view name = Entry::name;
    if (name == "ncclGroupStart") return 1;
    return name == "ncclGroupEnd" || name == "ncclGroupSimulateEnd" ? -1 : 0;
  }();

  // Returns a copy that is never freed, since Python keeps pointers to names.
  static const char* intern(std::string_view text) { return (new std::string(text))->c_str(); }
};

}  // namespace pynccl::python
