// The class Library of pynccl.raw, with every function of nccl.h under its own name.
#include "python/call/bind.h"
#include "python/raw/raw_call.h"

namespace pynccl::python {
namespace {

namespace entries {

#define FUNCTION(since, result, name, ...) using name##_Params = std::tuple<__VA_ARGS__>;
#define IN(T, name) Named<In<T>, #name>
#define OUT(T, name) Named<Out<T>, #name>
#define OUTS(T, name, n) Named<Outs<T, #n>, #name>
#define ARRAY(T, name, n) Named<Array<T, #n>, #name>
#define STRUCT(T, name) Named<Struct<T>, #name>
#define INOUT(T, name) Named<InOut<T>, #name>
#define FILLED(T, name) Named<Filled<T>, #name>
#define BUFFER(name, size, n) Named<ByteBuffer<#size, #n>, #name>
#define STRINGS(name, n) Named<Strings<#n>, #name>
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"

#define C_TEXT(...) #__VA_ARGS__
#define FUNCTION(since_, result, name_, ...)                                                   \
  struct name_##_Entry {                                                                       \
    using Params = name_##_Params;                                                             \
    using Result = result;                                                                     \
    static constexpr const char* name = #name_;                                                \
    static constexpr int since = since_;                                                       \
    static constexpr auto member = &NcclTable::name_;                                          \
    static constexpr const char* declaration = #result " " #name_ "(" C_TEXT(__VA_ARGS__) ")"; \
  };
#include "abi/c_params.inc"
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"
#undef C_TEXT

}  // namespace entries

template <class Entry>
void add_entry(const py::handle& type) {
  static const std::string doc = RawCall<Entry>::doc();
  static PyMethodDef definition = fast_method(Entry::name, &RawCall<Entry>::method, doc.c_str());
  add_method(type, definition);
}

}  // namespace

std::size_t CallArguments::count(std::string_view name) const {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] != name) continue;
    const int length = integer_from_python<int>(names[i], values[i]);
    if (length < 0) throw_value_error(name, length, " is negative");
    return static_cast<std::size_t>(length);
  }
  throw std::logic_error("no parameter " + std::string(name));
}

void bind_library(py::module_& m) {
  py::class_<Library, std::shared_ptr<Library>> library(
      m, "Library", R"(A loaded NCCL library, as returned by pynccl.raw.load().

Every function of nccl.h is a method of the same name and parameters. Addresses and handles are
integers, structs are classes of pynccl.raw, and NULL is None. Values that C returns through
pointers are return values. The GIL is released during a call.

Every method raises TypeError or ValueError for an argument of the wrong type or range, NcclError
for a result other than ncclSuccess and ncclInProgress, and MissingFunctionError if the library does
not export the function.)");
  library.def_property_readonly("path", &Library::path, "The path of the loaded file.")
      .def_property_readonly("version", &Library::version,
                             "The version as ncclGetVersion returns it: 23203 for 2.32.3.")
      .def_property_readonly(
          "memory",
          [](const Library& l) { return l.memory() == Memory::kHost ? "host" : "device"; },
          "The kind of memory that its communicators work on: 'host' or 'device'.")
      .def_property_readonly("driver_path", &Library::driver_path,
                             "The path of the library that provides the driver's stream calls.")
      .def("driver_version", &Library::driver_version,
           "The driver's version (cuDriverGetVersion): 13000 for CUDA 13.0.")
      .def(
          "device_names",
          [](const Library& l) {
            std::vector<std::string> names;
            int count = 0;
            DRIVER_CHECK(l, DeviceGetCount, (&count));
            for (int i = 0; i < count; ++i) {
              char name[256] = {};
              CUdevice device = 0;
              DRIVER_CHECK(l, DeviceGet, (&device, i));
              DRIVER_CHECK(l, DeviceGetName, (name, sizeof name, device));
              names.emplace_back(name);
            }
            return names;
          },
          "The names of the devices, by ordinal (cuDeviceGetName).")
      .def(
          "functions",
          [](const Library& l) {
            py::dict functions;
#define FUNCTION(since, result, name, ...) \
  functions[#name] = py::make_tuple(since, l.nccl_table().name != nullptr);
#include "abi/c_params.inc"
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"
            return functions;
          },
          "The functions of nccl.h: a dict from name to (first NCCL version, whether this library "
          "exports it).")
      .def("__repr__", [](const Library& l) {
        return "<pynccl.raw.Library " + version_text(l.version()) + " " + l.path() + ">";
      });
#define FUNCTION(since, result, name, ...) add_entry<entries::name##_Entry>(library);
#include "abi/c_params.inc"
#include "abi/nccl_functions.inc"
#include "abi/undef.inc"

  m.def("open_library", &Library::open, py::arg("path"),
        "Load the library at a path. The same file returns the same Library.");
  m.def(
      "loaded_path", [](const std::string& soname) { return loaded_path(soname); },
      py::arg("soname"),
      "The path of a file loaded in this process whose name begins with soname, or ''.");
  m.def("version_text", &version_text, py::arg("version"),
        "Format a version number: 23203 is '2.32.3'.");
}

}  // namespace pynccl::python
