// The calls that NCCL makes to pynccl's profiler plugin for an all_reduce, without NCCL: the event
// mask, the kernel launch, the operation, its channels and, with steps, a proxy for each of them.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>

#include "abi/nccl_plugin_types.h"

namespace {

using namespace pynccl::abi;

constexpr int kStates[] = {kStepSendGpuWait, kStepSendPeerWait, kStepSendWait};
const ProfilerV6* profiler;
void* context;
int mask;

void* start(ProfilerEvent type, void* parent, auto&& fill) {
  ProfilerEventV5 event{};
  event.type = type;
  event.parent = parent;
  fill(event);
  void* handle = nullptr;
  profiler->startEvent(context, &handle, &event);
  return handle;
}

void* start(ProfilerEvent type, void* parent) {
  return start(type, parent, [](ProfilerEventV5&) {});
}

void all_reduce(int channels, int steps) {
  const int wanted = std::atomic_ref(mask).load(std::memory_order_relaxed);
  if (wanted == 0) return;
  void* const launch = start(kProfileGroup, nullptr);
  void* const task = start(kProfileColl, nullptr, [&](ProfilerEventV5& event) {
    event.coll = {{0, "AllReduce", nullptr, nullptr, 8, 0, "ncclFloat32"},
                  {static_cast<std::uint8_t>(channels), 16, "RING", "SIMPLE"},
                  launch};
  });
  profiler->stopEvent(task);
  profiler->stopEvent(launch);
  for (int channel = 0; channel < channels; ++channel) {
    void* const kernel = start(kProfileKernelChannel, task, [&](ProfilerEventV5& event) {
      event.kernel = {static_cast<std::uint8_t>(channel), 1000};
    });
    void* const proxy = steps == 0 ? nullptr : start(kProfileProxyOp, task, [](auto& event) {
      event.proxy = {getpid(), 0, 1, 1, 1, 1};
    });
    for (int i = 0; i < steps; ++i) {
      void* const step = start(kProfileProxyStep, proxy);
      for (const int state : kStates) profiler->recordEventState(step, state, nullptr);
      profiler->stopEvent(step);
    }
    if (proxy) profiler->stopEvent(proxy);
    std::uint64_t ended = 2000;
    profiler->recordEventState(kernel, kKernelChannelStop, &ended);
    profiler->stopEvent(kernel);
  }
}

PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2) return nullptr;
  all_reduce(static_cast<int>(PyLong_AsLong(args[0])), static_cast<int>(PyLong_AsLong(args[1])));
  Py_RETURN_NONE;
}

PyObject* load(PyObject*, PyObject* path) {
  void* const library = dlopen(PyUnicode_AsUTF8(path), RTLD_NOW);
  profiler = library ? static_cast<const ProfilerV6*>(dlsym(library, "ncclProfiler_v6")) : nullptr;
  if (profiler == nullptr) return PyErr_Format(PyExc_OSError, "%s", dlerror());
  profiler->init(&context, 0, &mask, nullptr, 1, 8, 0, nullptr);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)), METH_FASTCALL, ""},
    {"load", load, METH_O, ""},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "profiler", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_profiler() { return PyModule_Create(&module); }
