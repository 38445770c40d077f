#include "hostnccl/base/tuning.h"

#include "hostnccl/base/params.h"

namespace hostnccl {

void read_tuning() {
  spin_time();
  direct_threshold(false);
  window_threshold();
  stream_threshold();
  direct_message_threshold(false, false);
  param_number(ParamId::Cma);
}

std::chrono::microseconds spin_time() {
  static const std::chrono::microseconds time(param_number(ParamId::SpinUs));
  return time;
}

size_t direct_threshold(bool within_process) {
  static const size_t between_processes = param_number(ParamId::DirectBytes);
  static const size_t in_process = param_number(ParamId::DirectBytesInProcess);
  return within_process ? in_process : between_processes;
}

size_t window_threshold() {
  static const size_t bytes = param_number(ParamId::WindowBytes);
  return bytes;
}

size_t stream_threshold() {
  static const size_t bytes = param_number(ParamId::StreamBytes);
  return bytes;
}

size_t direct_message_threshold(bool within_process, bool oversubscribed) {
  static const size_t default_case = param_number(ParamId::DirectMessageBytes);
  static const size_t when_oversubscribed = param_number(ParamId::DirectMessageBytesOversubscribed);
  static const size_t in_process = param_number(ParamId::DirectMessageBytesInProcess);
  if (within_process) return in_process;
  return oversubscribed ? when_oversubscribed : default_case;
}

}  // namespace hostnccl
