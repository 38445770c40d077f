// hostWindowMap(), hostWindowUnmap(): the memory of another rank in a window, for loads and stores.
// NCCL has ncclGetPeerDevicePointer, whose memory does not outlive the window.
#include "hostnccl/api/arguments.h"
#include "hostnccl/api/nccl_api.h"
#include "hostnccl/segment/window.h"

using namespace hostnccl;

// *mapping keeps the memory mapped, even after the window is deregistered, until hostWindowUnmap().
extern "C" [[gnu::visibility("default")]] ncclResult_t hostWindowMap(ncclComm_t comm,
                                                                     ncclWindow_t win, int peer,
                                                                     void** address,
                                                                     void** mapping) {
  return guarded([=] {
    const Ref<Communicator> owner = ready_comm(comm);
    check_rank("peer", peer, owner->nranks());
    const Ref<Window> window = find_window(non_null(win, "win"));
    if (!window || window->owner() != comm)
      fail(ncclInvalidArgument, "win=%p is no open window of comm", static_cast<void*>(win));
    non_null(address, "address");
    *non_null(mapping, "mapping") = new Ref<Window>(window);
    *address = window->part(peer).local;
    return ncclSuccess;
  });
}

extern "C" [[gnu::visibility("default")]] void hostWindowUnmap(void* mapping) {
  delete static_cast<Ref<Window>*>(mapping);
}
