// How the fast functions issue what they have checked.
#pragma once

#include "python/mirror/channel.h"
#include "python/mirror/names.h"
#include "python/mirror/process_group.h"
#include "python/objects/group.h"

namespace pynccl::python::mirror {

// The group of an argument, where operations on it go straight to NCCL; else nullptr.
inline ProcessGroup* direct_group(PyObject* argument) {
  ProcessGroup* group = ProcessGroup::given(argument);
  if (!group || !group->batch.is_none() || Group::active()) [[unlikely]]
    return nullptr;
  return group;
}

// Runs body, which only looks, and says whether it got through: what it throws or raises, the
// function in Python finds again and says it properly.
template <class Body>
bool passes(Body&& body) noexcept {
  try {
    if (body()) [[likely]]
      return true;
  } catch (...) {  // as the comment says
  }
  PyErr_Clear();
  return false;
}

// Calls send() of whatever goes to NCCL without the GIL.
template <class Send>
PyObject* issue_now(const ProcessGroup::Link& link, PyObject* name, Send&& send) {
  const py::object channel = link.object;  // another thread may end the group meanwhile
  return explained(channel, name, [&] {
    const Channel::Bracket bracket(*link.channel);
    const GilReleased released;
    send();
    return Py_NewRef(Py_None);
  });
}

template <class Send>
PyObject* issue_async(Work&& work, py::object held, Send&& send) {
  const py::object channel = work.channel;
  const py::object name = work.name;
  return explained(channel, name.ptr(), [&] {
    return work.part->start(std::move(work), std::move(held), [&](CUstream) {
      const GilReleased released;
      send();
    });
  });
}

}  // namespace pynccl::python::mirror
