// RawCall: a function of nccl.h as a Python method of Library, generated from its parameters. One
// class per kind of parameter in abi/nccl_functions.inc converts between Python and C. Results
// other than ncclSuccess and ncclInProgress are raised. Values that C returns through pointers are
// return values.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "python/call/fastcall.h"
#include "python/call/gil.h"
#include "python/raw/structs.h"

namespace pynccl::python {

// The arguments of a call by name, for parameters that refer to other parameters.
struct CallArguments {
  const Library& library;
  std::span<const char* const> names;  // of the visible parameters
  PyObject* const* values;             // of these parameters

  // The length in the parameter of this name. Throws ValueError if it is negative.
  std::size_t count(std::string_view name) const;
};

// The name of a parameter, as an argument of a template.
template <std::size_t N>
struct Text {
  char text[N]{};

  consteval Text(const char (&from)[N]) { std::copy_n(from, N, text); }
};

// Converts a Python integer to an integer, enum, handle or address, and None to NULL.
template <class T>
T from_python(const char* name, PyObject* value) {
  if constexpr (std::is_same_v<T, const char*>) {
    if (!PyUnicode_Check(value)) throw_type_error(name, "a str", value);
    const char* text = PyUnicode_AsUTF8(value);
    if (!text) throw py::error_already_set();
    return text;
  } else if constexpr (std::is_class_v<T>) {
    return struct_from_python<T>(name, value);
  } else if constexpr (std::is_pointer_v<T>) {
    if (value == Py_None) return nullptr;
    return reinterpret_cast<T>(integer_from_python<std::uintptr_t>(name, value));
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(integer_from_python<std::underlying_type_t<T>>(name, value));
  } else {
    return integer_from_python<T>(name, value);
  }
}

template <class T>
py::object to_python(const T& value) {
  if constexpr (std::is_same_v<T, const char*>) {
    return value ? py::object(py::str(value)) : py::object(py::none());
  } else if constexpr (std::is_class_v<T>) {
    return py::cast(value);
  } else if constexpr (std::is_pointer_v<T>) {
    return py::int_(reinterpret_cast<std::uintptr_t>(value));
  } else if constexpr (std::is_enum_v<T>) {
    return py::int_(static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return py::float_(value);
  } else {
    return py::int_(value);
  }
}

// A parameter that the caller passes, and one that is created here and returned.
struct Input {
  static constexpr bool visible = true;
  static constexpr bool returned = false;
};
struct Output {
  static constexpr bool visible = false;
  static constexpr bool returned = true;
  void load(const char*, PyObject*, const CallArguments&) {}
};

// A parameter of one of the kinds below.
template <class Kind, Text Name>
struct Named : Kind {
  static constexpr const char* name = Name.text;
};

template <class T>
struct In : Input {
  T value{};
  void load(const char* name, PyObject* object, const CallArguments&) {
    value = from_python<T>(name, object);
  }
  T argument() { return value; }
};

template <class T>
struct Out : Output {
  T value{};
  T* argument() { return &value; }
  py::object result() { return to_python(value); }
};

// Handles that NCCL may write after the call: at the end of the group, or in the background for a
// non-blocking communicator. Their memory is never freed.
template <class T>
  requires std::is_same_v<T, ncclComm_t> || std::is_same_v<T, ncclWindow_t>
struct Out<T> : Output {
  T* value = nullptr;
  void load(const char*, PyObject*, const CallArguments&) {
    static std::mutex& mutex = *new std::mutex;
    static std::deque<T>& handles = *new std::deque<T>;
    const std::lock_guard lock(mutex);
    value = &handles.emplace_back();
  }
  T* argument() { return value; }
  py::object result() { return to_python(*value); }
};

// NCCL may write these handles after the call as well. Their memory is never freed once the call
// has succeeded.
template <class T, Text Length>
struct Outs : Output {
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T[], Free> values;
  std::size_t size = 0;
  void load(const char*, PyObject*, const CallArguments& call) {
    size = call.count(Length.text);
    // calloc does not touch the pages, so a size that NCCL refuses uses no memory.
    values.reset(static_cast<T*>(std::calloc(std::max<std::size_t>(size, 1), sizeof(T))));
    if (!values) throw std::bad_alloc();
  }
  T* argument() { return values.get(); }
  py::object result() {
    const T* written = values.release();
    py::list list(size);
    for (std::size_t i = 0; i < size; ++i) list[i] = to_python(written[i]);
    return list;
  }
};

template <class T, Text Length>
struct Array : Input {
  std::vector<std::remove_const_t<T>> values;
  bool null = false;
  void load(const char* name, PyObject* object, const CallArguments& call) {
    null = object == Py_None;
    if (null) return;
    // A copy: the conversion of an item may run Python code that changes a list.
    const auto items = py::reinterpret_steal<py::object>(PySequence_Tuple(object));
    if (!items) throw_conversion_error(name, "a sequence or None", object);
    const auto size = static_cast<std::size_t>(PyTuple_GET_SIZE(items.ptr()));
    const std::size_t needed = call.count(Length.text);
    if (size < needed)
      throw_value_error(name, "has ", size, " items, ", Length.text, " is ", needed);
    for (std::size_t i = 0; i < size; ++i)
      values.push_back(from_python<std::remove_const_t<T>>(
          name, PyTuple_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i))));
  }
  T* argument() { return null ? nullptr : values.data(); }
};

// A versioned struct of the caller, converted to the version of the library.
template <class T>
struct Struct : Input {
  using Value = std::remove_const_t<T>;
  Value value{};
  bool null = false;
  void load(const char* name, PyObject* object, const CallArguments& call) {
    null = object == Py_None;
    if (null) return;
    value = struct_from_python<Value>(name, object);
    if constexpr (requires { call.library.fit(value); }) value = call.library.fit(value);
  }
  T* argument() { return null ? nullptr : &value; }
};

template <class T>
struct InOut : Input {
  static constexpr bool returned = true;  // as well
  T value{};
  void load(const char* name, PyObject* object, const CallArguments&) {
    value = struct_from_python<T>(name, object);
  }
  T* argument() { return &value; }
  py::object result() { return py::cast(value); }
};

// A struct of the caller that this call, or a later one that receives its address, writes to. The
// object must live until then.
template <class T>
struct Filled : Input {
  T* value = nullptr;
  void load(const char* name, PyObject* object, const CallArguments&) {
    py::detail::make_caster<T> caster;
    if (object == Py_None || !caster.load(object, false))
      throw_type_error(name, type_name<T>().c_str(), object);
    value = &py::detail::cast_op<T&>(caster);
  }
  T* argument() { return value; }
};

// Memory that the call writes. An input gives its capacity, an output its length.
template <Text Size, Text Length>
struct ByteBuffer : Output {
  static constexpr std::string_view kLength = Length.text;
  std::string bytes;
  void load(const char*, PyObject*, const CallArguments& call) {
    bytes.resize(call.count(Size.text));
  }
  void* argument() { return bytes.data(); }
  py::object result(std::size_t length) {
    return py::bytes(bytes.data(), std::min(length, bytes.size()));
  }
};

template <Text Length>
struct Strings : Output {
  static constexpr std::string_view kLength = Length.text;
  const char** table = nullptr;
  const char*** argument() { return &table; }
  py::object result(std::size_t length) {
    py::list list(length);
    for (std::size_t i = 0; i < length; ++i) list[i] = to_python(table[i]);
    return list;
  }
};

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
      if constexpr (Param<I>::visible) text += std::string(", ") + Param<I>::name;
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

  static constexpr VisibleNames kNames = []<std::size_t... I>(std::index_sequence<I...>) {
    return VisibleNames{Param<kVisible[I]>::name...};
  }(std::make_index_sequence<kVisible.size()>());

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
    static const VisibleSignature signature(Entry::name, kNames);
    typename VisibleSignature::Values values;
    PyObject* const* visible = signature.parse(args, nargs, kwnames, values);

    Params params;
    [[maybe_unused]] const CallArguments arguments{library, kNames, visible};
    (std::get<I>(params).load(Param<I>::name, value<I>(visible), arguments), ...);
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
    if constexpr (requires { Param<I>::kLength; }) {
      std::size_t length = 0;
      each([&]<std::size_t J>() {
        if constexpr (std::is_base_of_v<Out<int>, Param<J>>)
          if (Param<J>::name == Param<I>::kLength)
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
};

}  // namespace pynccl::python
