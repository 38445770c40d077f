// The C++ part of pynccl._internal.inquiry: pending questions, and the state of the communicators
// of this process.
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "common/per_process.h"
#include "python/call/bind.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/comm/communicator.h"
#include "watch/comparison.h"
#include "watch/inquiry.h"

namespace pynccl::python {
namespace {

// Python may end the thread during an import or a call, with no C++ object alive in or_sleep().
py::object imported(const char* module, const char* name) {
  PyObject* const found = gil::or_sleep([&] { return PyImport_ImportModule(module); });
  if (!found) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found).attr(name);
}

py::object call(const py::object& function, const py::tuple& arguments) {
  PyObject* const result =
      gil::or_sleep([&] { return PyObject_CallObject(function.ptr(), arguments.ptr()); });
  if (!result) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

py::object watcher() { return imported("pynccl._internal.inquiry", "watcher"); }

// The communicators with a store, protected by the GIL. Per process, since a child of fork() must
// not use the stores of its parent.
std::vector<std::weak_ptr<Communicator>>& watched() {
  return common::per_process<std::vector<std::weak_ptr<Communicator>>>();
}

std::vector<std::shared_ptr<Communicator>> open_watched() {
  std::vector<std::shared_ptr<Communicator>> open;
  std::erase_if(watched(), [&](const auto& one) {
    auto communicator = one.lock();
    if (!communicator || communicator->closed()) return true;
    open.push_back(std::move(communicator));
    return false;
  });
  return open;
}

std::optional<std::string> joined_id(const FlightIdentity& is) {
  return is.joined != 0 ? std::optional(FlightIdentity::text(is.joined)) : std::nullopt;
}

py::list members() {
  py::list found;
  for (const auto& one : open_watched()) {
    const FlightIdentity is = one->deadlines().recorder().identity();
    found.append(
        py::make_tuple(held(one->store()), FlightIdentity::text(is.id), joined_id(is), is.rank));
  }
  return found;
}

// A question to one source, with the communicator that it is about.
struct Question {
  std::shared_ptr<Inquiry> inquiry;
  Inquiry::Source source;
  std::shared_ptr<Communicator> communicator;
  std::string comm;
  int rank, nranks;
};

// Whether NCCL serves RAS: from 2.24 on, unless NCCL_RAS_ENABLE=0 disables it.
bool has_ras(const Library& library) {
  constexpr int kFirst = 22400;
  if (library.memory() != Memory::kDevice || library.version() < kFirst) return false;
  const char* enabled = std::getenv("NCCL_RAS_ENABLE");
  return !enabled || std::strcmp(enabled, "0") != 0;
}

// The value of PYNCCL_CHECK; nullopt if it is empty.
std::optional<std::uint64_t> check_from_text(const std::string& text) {
  if (text.empty()) return std::nullopt;
  try {
    return check_from_python(text == "every" ? py::object(py::str(text)) : py::int_(py::str(text)));
  } catch (const std::exception&) {
    throw py::value_error("PYNCCL_CHECK: '" + text + "' is neither 'every' nor a positive integer");
  }
}

std::optional<Question> take_inquiry(double seconds, bool ras) {
  const Inquiry::Source source = ras ? Inquiry::kRas : Inquiry::kStore;
  std::shared_ptr<Inquiry> inquiry;
  {
    const GilReleased released;
    inquiry = Inquiry::take(source, seconds);
  }
  auto communicator = inquiry ? inquiry->communicator() : nullptr;
  if (!communicator) return std::nullopt;
  const FlightIdentity is = communicator->deadlines().recorder().identity();
  return Question{std::move(inquiry),          source,  std::move(communicator),
                  FlightIdentity::text(is.id), is.rank, is.nranks};
}

// The fields of pynccl._internal.comparison.Rank.
py::tuple rank_of(const Communicator& communicator) {
  const Deadlines& deadlines = communicator.deadlines();
  const FlightIdentity is = deadlines.recorder().identity();
  const bool has_joined = is.parent == 0 && is.creator == "ncclCommGrow";
  return py::make_tuple(held(communicator.store()), FlightIdentity::text(is.id), joined_id(is),
                        has_joined, is.rank, is.nranks, seconds_from_limit(deadlines.limit()));
}

// Called by Comparison, with or without the GIL.
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
  const py::object exchange = imported("pynccl._internal.comparison", "exchange");
  const py::object failure = call(exchange, py::make_tuple(collectives, given_messages));
  if (failure.is_none()) return;
  auto [rank, text, ranks] =
      py::cast<std::tuple<int, std::string, std::optional<std::vector<int>>>>(failure);
  if (!ranks) throw NcclFailure(ncclInvalidUsage, "check", rank, text);
  throw NcclFailure(ncclTimeout, "check", rank, text, MissingRanks{std::move(*ranks), "store"});
}

}  // namespace

Communicator::Options with_comparison(Communicator::Options options) {
  if (options.check && !options.store)
    throw py::value_error("check: the ranks need a store to compare: Communicator(store=...)");
  if (const char* text = std::getenv("PYNCCL_CHECK"); text && !options.check && options.store)
    options.check = check_from_text(text);
  return options;
}

void check_store(const py::object& store) {
  for (const char* method : {"add", "check", "get", "set"})
    if (!py::hasattr(store, method))
      throw_type_error("store", "an object with the methods of torch.distributed.Store",
                       store.ptr());
}

std::shared_ptr<void> store_from_python(const py::object& store) {
  if (store.is_none()) return nullptr;
  check_store(store);
  return hold(call(watcher().attr("attach"), py::make_tuple(store)));
}

void watch_missing_ranks(const std::shared_ptr<Communicator>& communicator) {
  const bool store = communicator->store() != nullptr, ras = has_ras(communicator->library());
  if (!store && !ras) return;
  communicator->inquire(ras);
  if (store) watched().push_back(communicator);
  call(watcher().attr("start"), py::make_tuple(store, ras));
}

void bind_inquiry(py::module_& m) {
  py::class_<Question>(m, "Inquiry",
                       "A question about an overdue operation, for pynccl._internal.inquiry.")
      .def_property_readonly(
          "store", [](const Question& q) { return held(q.communicator->store()); },
          "The store of the communicator.")
      .def_readonly("comm", &Question::comm, "The id of the communicator, equal on its ranks.")
      .def_readonly("rank", &Question::rank, "This rank.")
      .def_readonly("nranks", &Question::nranks, "The number of ranks.")
      .def_property_readonly(
          "what", [](const Question& q) { return q.inquiry->late().what; },
          "The overdue operation, or the function of nccl.h.")
      .def(
          "keep_waiting", [](const Question& q) { q.inquiry->keep_waiting(); },
          "Keep the error waiting for the answer: without a call for two seconds, it is raised.")
      .def(
          "answer",
          [](const Question& q, std::string text, std::optional<std::vector<int>> missing) {
            Inquiry::Answer answer{std::move(text), std::nullopt};
            const char* source = q.source == Inquiry::kRas ? "RAS" : "store";
            if (missing) answer.missing = MissingRanks{std::move(*missing), source};
            q.inquiry->answer(q.source, std::move(answer));
          },
          py::arg("text"), py::arg("missing"),
          "Answer the question: a description of the missing ranks, appended to the error text, "
          "and these ranks, None if they are unknown.");
  auto communicator = py::reinterpret_borrow<CommunicatorClass>(m.attr("Communicator"));
  communicator.def_property_readonly(
      "_timeout_error",
      [](const Communicator& c) { return error_object(c.expiry("ncclCommGetAsyncError")); },
      "The NcclTimeoutError of an expired communicator, not raised.");
  Comparison::set_exchange(&compare);
  m.def("sleep_at_exit", &gil::sleep_instead_of_terminate,
        R"(Make the calling thread sleep if the interpreter exits while it calls a store.

Before 3.14, Python ends such a thread with pthread_exit, which aborts the process inside the C++
code of torch's stores.)");
  m.def("take_inquiry", &take_inquiry, py::arg("seconds"), py::kw_only(), py::arg("ras") = false,
        "Wait at most these seconds for an overdue operation of a communicator with a store or, "
        "with ras, with the RAS service. Returns an Inquiry, or None.");
  m.def("members", &members,
        "The open communicators with a store: tuples of the store, the id, the id on the ranks "
        "that have joined with grow() if it is known, and this rank, -1 if it is not known yet.");
}

}  // namespace pynccl::python
