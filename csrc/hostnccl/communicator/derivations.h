// Derivations of communicators from this one, which its revocation and its abort end.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

#include "hostnccl/rendezvous/creation.h"

namespace hostnccl {

class Derivations {
 public:
  // Marks one derivation during its lifetime; not used in the operations before the rendezvous,
  // which wait for the ranks of this communicator and end with its own.
  class Scope {
   public:
    Scope(Derivations& all, Creation& creation) : all_(all), creation_(creation) {
      const std::lock_guard lock(all_.mutex_);
      all_.running_.push_back(&creation_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      const std::lock_guard lock(all_.mutex_);
      std::erase(all_.running_, &creation_);
    }

   private:
    Derivations& all_;
    Creation& creation_;
  };

  bool end(Creation::End how) {  // whether there is one
    const std::lock_guard lock(mutex_);
    for (Creation* creation : running_) creation->end(how);
    return !running_.empty();
  }

 private:
  std::mutex mutex_;
  std::vector<Creation*> running_;
};

}  // namespace hostnccl
