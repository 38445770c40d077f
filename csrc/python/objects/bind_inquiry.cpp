// What pynccl._internal.inquiry needs: the open questions, and what the communicators of this
// process do.
#include <cmath>
#include <cstdlib>
#include <tuple>

#include "common/per_process.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/objects/bind.h"
#include "python/objects/communicator.h"
#include "python/objects/config.h"
#include "python/objects/stores.h"
#include "watch/comparison.h"
#include "watch/inquiry.h"

namespace pynccl::python {
namespace {

// The functions of pynccl._internal.inquiry, which set_watcher() passes in. References for the life
// of the process.
struct Watcher {
  PyObject* attach = nullptr;
  PyObject* start = nullptr;
};

PyObject* exchange = nullptr;  // of pynccl._internal.inquiry, likewise

Watcher watcher;

void set_watcher(const py::object& attach, const py::object& start) {
  watcher = {py::object(attach).release().ptr(), py::object(start).release().ptr()};
}

// The communicators with a store; under the GIL. A child of fork() must not use the stores of its
// parent.
std::vector<std::weak_ptr<Communicator>>& watched() {
  return common::per_process<std::vector<std::weak_ptr<Communicator>>>();
}

std::vector<std::shared_ptr<Communicator>> open_ones() {
  std::vector<std::shared_ptr<Communicator>> open;
  std::erase_if(watched(), [&](const auto& one) {
    auto communicator = one.lock();
    if (!communicator || communicator->closed()) return true;
    open.push_back(std::move(communicator));
    return false;
  });
  return open;
}

py::list members() {
  py::list found;
  for (const auto& one : open_ones()) {
    const FlightIdentity is = one->deadlines().recorder().identity();
    const auto joined =
        is.joined != 0 ? std::optional(FlightIdentity::text(is.joined)) : std::nullopt;
    found.append(py::make_tuple(held(one->store()), FlightIdentity::text(is.id), joined, is.rank));
  }
  return found;
}

// A question with the communicator that it is about.
struct Question {
  std::shared_ptr<Inquiry> inquiry;
  std::shared_ptr<Communicator> communicator;
  FlightIdentity identity;
};

// PYNCCL_CHECK; nothing is compared where it is empty.
std::optional<std::uint64_t> check_from_text(const std::string& text) {
  if (text.empty()) return std::nullopt;
  try {
    return check_from_python(text == "every" ? py::object(py::str(text)) : py::int_(py::str(text)));
  } catch (const std::exception&) {
    throw py::value_error("PYNCCL_CHECK: '" + text + "' is neither 'every' nor a number from 1 on");
  }
}

std::optional<Question> take_inquiry(double seconds) {
  std::shared_ptr<Inquiry> inquiry;
  {
    const GilReleased released;
    inquiry = Inquiry::take(seconds);
  }
  auto communicator = inquiry ? inquiry->communicator() : nullptr;
  if (!communicator) return std::nullopt;
  FlightIdentity identity = communicator->deadlines().recorder().identity();
  return Question{std::move(inquiry), std::move(communicator), std::move(identity)};
}

double seconds_of_limit(const Deadlines& deadlines) {
  const std::int64_t limit = deadlines.limit();
  return limit == FlightRecord::kNoLimit ? HUGE_VAL : static_cast<double>(limit) / 1e9;
}

// A rank of a communicator and its store, as pynccl._internal.comparison.Rank.
py::tuple rank_of(const Communicator& communicator) {
  const Deadlines& deadlines = communicator.deadlines();
  const FlightIdentity is = deadlines.recorder().identity();
  const bool has_joined = is.parent == 0 && is.creator == "ncclCommGrow";
  return py::make_tuple(held(communicator.store()), FlightIdentity::text(is.id),
                        is.joined != 0 ? py::object(py::str(FlightIdentity::text(is.joined)))
                                       : py::object(py::none()),
                        has_joined, is.rank, is.nranks, seconds_of_limit(deadlines));
}

// For Comparison, with or without the GIL.
void compare(const std::vector<Comparison::Item>& items,
             const std::vector<Comparison::Message>& messages) {
  const GilAcquired gil;
  py::list collectives, given_messages;
  for (const Comparison::Item& item : items)
    collectives.append(py::make_tuple(rank_of(*item.communicator), item.number, item.text,
                                      item.before,
                                      item.communicator->deadlines().recorder().fingerprint()));
  for (const Comparison::Message& message : messages)
    given_messages.append(py::make_tuple(rank_of(*message.communicator), message.sends,
                                         message.peer, message.number, message.text));
  py::object failure;  // of a function that waits for the other ranks
  gil::or_sleep([&] { failure = py::handle(exchange)(collectives, given_messages); });
  if (failure.is_none()) return;
  const auto [rank, text, missing] =
      py::cast<std::tuple<int, std::string, std::optional<std::vector<int>>>>(failure);
  throw NcclFailure(missing ? ncclTimeout : ncclInvalidUsage, "check", rank, text, missing);
}

void set_exchange(const py::object& function) {
  exchange = py::object(function).release().ptr();
  Comparison::set_exchange(&compare);
}

}  // namespace

Communicator::Options with_comparison(Communicator::Options options) {
  if (options.check && !options.store)
    throw py::value_error("check: the ranks need a store to compare: Communicator(store=...)");
  if (const char* text = std::getenv("PYNCCL_CHECK"); text && !options.check && options.store)
    options.check = check_from_text(text);
  return options;
}

std::shared_ptr<void> store_from_python(const py::object& store) {
  if (store.is_none()) return nullptr;
  for (const char* method : {"add", "check", "get", "set"})
    if (!py::hasattr(store, method))
      throw_type_error("store", "an object with the methods of torch.distributed.Store",
                       store.ptr());
  if (!watcher.attach) throw std::runtime_error("store: pynccl._internal.inquiry is not imported");
  return hold(py::object(py::handle(watcher.attach)(store)));
}

void watch_store(const std::shared_ptr<Communicator>& communicator) {
  if (!communicator->store()) return;
  communicator->inquire();
  watched().push_back(communicator);
  py::handle(watcher.start)();
}

void bind_inquiry(py::module_& m) {
  py::class_<Question>(m, "Inquiry", "An operation that is late; pynccl._internal.inquiry answers.")
      .def_property_readonly(
          "store", [](const Question& q) { return held(q.communicator->store()); },
          "Of the communicator.")
      .def_property_readonly(
          "comm", [](const Question& q) { return FlightIdentity::text(q.identity.id); },
          "The id of the communicator, equal on its ranks.")
      .def_property_readonly(
          "rank", [](const Question& q) { return q.identity.rank; }, "This one.")
      .def_property_readonly(
          "nranks", [](const Question& q) { return q.identity.nranks; }, "The number of ranks.")
      .def_property_readonly(
          "what", [](const Question& q) { return q.inquiry->late().what; },
          "The operation, or the function of nccl.h.")
      .def(
          "answer",
          [](const Question& q, std::string text, std::optional<std::vector<int>> missing) {
            q.inquiry->answer({std::move(text), std::move(missing)});
          },
          py::arg("text"), py::arg("missing"), R"(Answer, with the end of the error's text.

Args:
    text: which ranks are missing, in words.
    missing: these ranks; None if that is unknown.)");
  auto communicator = py::reinterpret_borrow<CommunicatorClass>(m.attr("Communicator"));
  communicator.def_property_readonly(
      "_timeout_error",
      [](const Communicator& c) -> py::object {
        if (!c.expired()) return py::none();
        const NcclFailure failure = c.expiry("ncclCommGetAsyncError");
        return error_object(failure.code, failure.function.c_str(), failure.rank, failure.what(),
                            failure.missing);
      },
      "The NcclTimeoutError of a communicator that has expired, not raised; else None.");
  m.def("set_watcher", &set_watcher, py::arg("attach"), py::arg("start"),
        R"(Set how stores are used; pynccl._internal.inquiry calls it when it is imported.

Args:
    attach: a function of the store of a new communicator, which returns the one to use.
    start: a function that is called once there is a communicator with a store.)");
  m.def(
      "set_exchange", &set_exchange, py::arg("function"),
      R"(Set how ranks compare what they call; pynccl._internal.inquiry calls it when it is imported.

Args:
    function: pynccl._internal.comparison.exchange.)");
  m.def("sleep_at_exit", &gil::sleep_instead_of_terminate,
        R"(Let the calling thread sleep where the interpreter ends during its call of a store.

Before 3.14 Python ends such a thread by pthread_exit, which aborts the process in the C++ of torch's
stores.)");
  m.def("take_inquiry", &take_inquiry, py::arg("seconds"), R"(Wait for an operation that is late.

Args:
    seconds: how long to wait at most.

Returns:
    An Inquiry, or None.)");
  m.def("members", &members, R"(The open communicators with a store.

Returns:
    A list of tuples: the store, the id, after grow() the id on the ranks that have joined, where it
    is known, and this rank, -1 before it is known.)");
}

}  // namespace pynccl::python
