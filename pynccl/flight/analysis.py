"""Analysis of the dumps of several ranks: which ranks wait for which, in which operation."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from pynccl.flight.dump import Dump, Record
from pynccl.flight.merged import Member, Merged, merge, ranks_text

__all__ = ["Finding", "Report", "analyse"]

_MOST = 4  # operations that a finding lists


@dataclass(frozen=True)
class Finding:
    """A reason for ranks to wait, or an error.

    Attributes:
        kind: "mismatch", "skipped", "behind", "stuck", "call", "unmatched_send", "unmatched_recv",
            "message_mismatch" or "no_file".
        communicator: its id.
        ranks: the ranks that differ, are behind, or have no file.
        waiting: the ranks that wait for them.
        number: the number of the collective or message.
        seconds: the longest wait.
        text: the finding as text.
    """

    kind: str
    communicator: str
    ranks: list[int]
    waiting: list[int]
    number: int | None
    seconds: float | None
    text: str


@dataclass(frozen=True)
class Report:
    """The findings and a summary of every communicator.

    Attributes:
        communicators: for each, its id, the progress of its ranks, and a text.
        findings: the findings, in the order of the communicators.
    """

    communicators: list[dict[str, object]]
    findings: list[Finding]

    def json(self) -> dict[str, object]:
        """Return the report for JSON.

        Returns:
            A dictionary with "communicators" and "findings".
        """
        return {
            "communicators": self.communicators,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def text(self) -> str:
        """Return the report as printed by ``pynccl flight``.

        Returns:
            Lines of text.
        """
        lines = []
        for communicator in self.communicators:
            lines.append(f"{communicator['text']}")
            own = [one for one in self.findings if one.communicator == communicator["id"]]
            lines += [f"  {finding.text}" for finding in own]
            lines += [] if own else ["  no rank waits for another"]
        return "\n".join(lines) if lines else "there is no communicator in these files"


def analyse(dumps: Sequence[Dump]) -> Report:
    """Compare the ranks of all communicators.

    Args:
        dumps: the dumps of the processes of one program.

    Returns:
        The report.

    Raises:
        DumpError: the files do not belong together.
    """
    merged = merge(dumps)
    return Report(
        [_describe(one) for one in merged], [f for one in merged for f in _findings(one, merged)]
    )


def _describe(one: Merged) -> dict[str, object]:
    last = {rank: member.communicator.collectives for rank, member in one.members.items()}
    failures = {
        rank: member.communicator.failure
        for rank, member in one.members.items()
        if member.communicator.failure is not None
    }
    lines = [
        f"{one.label} of {one.nranks} ranks, created by {next(iter(one)).communicator.creator}"
    ]
    processes = {rank: member.dump.rank for rank, member in one.members.items()}
    if any(process not in (None, rank) for rank, process in processes.items()):
        places = [f"{rank} in process {process}" for rank, process in processes.items()]
        lines.append(f"  its ranks: {', '.join(places)}")
    lines += [f"  rank {rank} has failed: {text}" for rank, text in failures.items()]
    return {
        "id": one.id,
        "name": one.name,
        "nranks": one.nranks,
        "missing": one.missing,
        "collectives": last,
        "failures": failures,
        "text": "\n".join(lines),
    }


def _findings(one: Merged, everything: Sequence[Merged]) -> Iterator[Finding]:
    found = list(_collectives(one, everything))
    found += _calls(one)
    found += _messages(one)
    yield from found
    if one.missing:
        yield from _missing(one, explained=bool(found))


def _named(record: Record) -> str:
    """Return a text such as "#5 all_reduce(float32, count=4, sum)"."""
    number = "" if record.number is None else f"#{record.number} "
    return f"{number}{record.operation}{record.arguments}"


# --- collectives


def _collectives(one: Merged, everything: Sequence[Merged]) -> Iterator[Finding]:
    if not one.members:
        return
    first = max(member.first_collective for member in one)
    last = min(member.communicator.collectives for member in one)
    # Only numbers with a record, because a file may claim any number of collectives.
    numbers = {number for member in one for number in member.collectives}
    for number in sorted(number for number in numbers if first <= number <= last):
        records = {rank: member.collectives.get(number) for rank, member in one.members.items()}
        known = {rank: record for rank, record in records.items() if record is not None}
        if len({record.signature for record in known.values()}) > 1:
            yield _mismatch(one, number, known)
            return
    firsts = [member.collectives.get(first) for member in one] if first <= last else []
    if None not in firsts and len({record.fingerprint for record in firsts if record}) > 1:
        yield _earlier_mismatch(one, first)
        return
    behind = list(_behind(one, everything))
    yield from behind
    if not behind:
        yield from _stuck(one)


def _groups(values: Mapping[int, object]) -> list[list[int]]:
    """Group ranks by value, the largest group (presumed right) first, then by lowest rank."""
    by_value = collections.defaultdict(list)
    for rank, value in values.items():
        by_value[value].append(rank)
    return sorted(by_value.values(), key=lambda ranks: (-len(ranks), ranks[0]))


def _mismatch(one: Merged, number: int, records: dict[int, Record]) -> Finding:
    usual, *others = _groups({rank: record.signature for rank, record in records.items()})
    wrong = sorted(rank for ranks in others for rank in ranks)
    differing = [
        f"{ranks_text(ranks)} called {records[ranks[0]].operation}{records[ranks[0]].arguments}"
        for ranks in others
    ]
    expected = records[usual[0]]
    text = (
        f"{'; '.join(differing)} as #{number} where {ranks_text(usual)} called "
        f"{expected.operation}{expected.arguments}"
    )
    skipped = [rank for rank in wrong if _has_skipped(one, rank, usual[0], number)]
    if skipped:
        text += (
            f"; from there on, the calls of {ranks_text(skipped)} match the next calls of the "
            f"others: {'it has' if len(skipped) == 1 else 'they have'} skipped #{number}"
        )
    kind = "skipped" if skipped == wrong else "mismatch"
    waiting = [rank for rank in usual if records[rank].is_open]
    seconds = max((one.members[rank].waited(records[rank]) for rank in waiting), default=None)
    return Finding(kind, one.id, wrong, waiting, number, seconds, text + _waits(waiting, seconds))


def _has_skipped(one: Merged, rank: int, other: int, number: int) -> bool:
    """Return whether a rank's calls from a number on equal another rank's from the next one on."""
    own, usual = one.members[rank].collectives, one.members[other].collectives
    pairs = [(own[n], usual[n + 1]) for n in own if n >= number and n + 1 in usual]
    return bool(pairs) and all(mine.signature == its.signature for mine, its in pairs)


def _earlier_mismatch(one: Merged, number: int) -> Finding:
    usual, *others = _groups({r: m.collectives[number].fingerprint for r, m in one.members.items()})
    wrong = sorted(rank for ranks in others for rank in ranks)
    text = (
        f"{ranks_text(wrong)} called other collectives than {ranks_text(usual)} before #{number}, "
        "the first that all have records of: the fingerprints differ"
    )
    return Finding("mismatch", one.id, wrong, [], number, None, text)


def _behind(one: Merged, everything: Sequence[Merged]) -> Iterator[Finding]:
    heads = {rank: member.communicator.collectives for rank, member in one.members.items()}
    most = max(heads.values())
    groups = collections.defaultdict(list)
    for rank, head in heads.items():
        if head < most:
            groups[head].append(rank)
    for head, ranks in sorted(groups.items()):
        number = head + 1
        issued = {
            rank: member.collectives[number]
            for rank, member in one.members.items()
            if number in member.collectives
        }
        waiting = [rank for rank, record in issued.items() if record.is_open]
        seconds = max((one.members[rank].waited(issued[rank]) for rank in waiting), default=None)
        what = _named(next(iter(issued.values()))) if issued else f"#{number}"
        verb = "has" if len(ranks) == 1 else "have"
        text = f"{ranks_text(ranks)} {verb} not issued {what}; {_last(one, ranks, head)}"
        text += _elsewhere(one, ranks, everything) + _waits(waiting, seconds)
        if not waiting:
            text += f"; {ranks_text([r for r in heads if heads[r] > head])} went on"
        yield Finding("behind", one.id, ranks, waiting, number, seconds, text)


def _last(one: Merged, ranks: Sequence[int], head: int) -> str:
    if head == 0:
        return "no collective was called so far"
    records = [one.members[rank].collectives.get(head) for rank in ranks]
    states = sorted({record.state for record in records if record is not None})
    its = "its" if len(ranks) == 1 else "their"
    return f"{its} last is #{head}" + (f", {' or '.join(states)}" if states else "")


def _elsewhere(one: Merged, ranks: Sequence[int], everything: Sequence[Merged]) -> str:
    """Describe the calls in which these ranks wait, other than collectives compared here."""
    places = []
    for rank in ranks:
        member = one.members[rank]
        for other in everything:
            outside = other is not one
            for own in other if outside else [member]:
                if own.dump is member.dump and (place := _place(own, other, outside=outside)):
                    places.append(f"; rank {rank} waits in {place}")
    return "".join(places[:_MOST])


def _place(member: Member, merged: Merged, *, outside: bool) -> str:
    """Return the call in which a rank waits, or else the first incomplete operation.

    outside is False for the communicator whose collectives are compared; these are skipped.
    """
    of = f" of {merged.label}" if outside else ""
    for call in member.communicator.calls:
        if call.function != "ncclGroupEnd":
            since = member.dump.seconds_since(call.time_created_ns)
            return f"{call.function}{of} for {since:.1f} s"
    for record in member.communicator.records:
        if record.is_open and (outside or not record.is_collective):
            return f"{_named(record)}{of} for {member.waited(record):.1f} s"
    return ""


def _stuck(one: Merged) -> Iterator[Finding]:
    """Find the first incomplete collective, if all ranks have called the same ones."""
    waiting: dict[int, Record] = {}
    for rank, member in one.members.items():
        opened = [r for _, r in sorted(member.collectives.items()) if r.is_open]
        if opened:
            waiting[rank] = opened[0]
    if not waiting:
        return
    number = min(record.number or 0 for record in waiting.values())
    ranks = [rank for rank, record in waiting.items() if record.number == number]
    record = waiting[ranks[0]]
    seconds = max(one.members[rank].waited(waiting[rank]) for rank in ranks)
    who = "all ranks have"
    if one.missing:
        who = f"{ranks_text(one.members)} {'has' if len(one.members) == 1 else 'have'}"
    text = f"{who} issued {_named(record)}" + _waits(ranks, seconds)
    yield Finding("stuck", one.id, [], ranks, number, seconds, text)


def _waits(waiting: Sequence[int], seconds: float | None) -> str:
    if not waiting or seconds is None:
        return ""
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"; {ranks_text(waiting)} {verb} in it for {seconds:.1f} s"


# --- other calls


def _calls(one: Merged) -> Iterator[Finding]:
    functions: dict[str, dict[int, float]] = collections.defaultdict(dict)
    for rank, member in one.members.items():
        for call in member.communicator.calls:
            if call.function != "ncclGroupEnd":
                functions[call.function][rank] = member.dump.seconds_since(call.time_created_ns)
    for function, since in functions.items():
        others = [rank for rank in one.members if rank not in since]
        verb = "is" if len(since) == 1 else "are"
        text = f"{ranks_text(since)} {verb} in {function} for {max(since.values()):.1f} s"
        if others:
            text += f"; {ranks_text(others)} {'is' if len(others) == 1 else 'are'} not"
        yield Finding("call", one.id, others, list(since), None, max(since.values()), text)


# --- messages


def _messages(one: Merged) -> Iterator[Finding]:
    pairs = {
        (rank, peer) if operation == "send" else (peer, rank)
        for rank, member in one.members.items()
        for operation, peer in member.messages
        if peer in one.members
    }
    for source, target in sorted(pairs):
        sends = one.members[source].messages.get(("send", target), {})
        receives = one.members[target].messages.get(("recv", source), {})
        yield from _pair(one, source, target, sends, receives)


def _pair(
    one: Merged,
    source: int,
    target: int,
    sends: Mapping[int, Record],
    receives: Mapping[int, Record],
) -> Iterator[Finding]:
    for number in sorted(sends.keys() & receives.keys()):
        send, receive = sends[number], receives[number]
        if (send.dtype, send.count) != (receive.dtype, receive.count):
            text = (
                f"send #{number} of rank {source} to rank {target} has ({send.dtype}, "
                f"count={send.count}), its receive ({receive.dtype}, count={receive.count})"
            )
            yield Finding("message_mismatch", one.id, [source, target], [], number, None, text)
            return
    for kind, ranks, mine, others in (
        ("send", (source, target), sends, receives),
        ("recv", (target, source), receives, sends),
    ):
        own, peer = ranks
        if not others and not one.members[peer].complete:
            continue  # the matching records may have been overwritten
        called = max(others, default=0)
        alone = [number for number in sorted(mine) if number > called]
        if not alone:
            continue
        record, member = mine[alone[0]], one.members[own]
        counterpart = "receive" if kind == "send" else "send"
        direction = ("to", "from") if kind == "send" else ("from", "to")
        more = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
        text = (
            f"{kind} #{alone[0]}{record.arguments} of rank {own} {direction[0]} rank {peer}{more} "
            f"has no {counterpart}: rank {peer} has called {called} {direction[1]} rank {own}"
        )
        waiting = [own] if record.is_open else []
        seconds = member.waited(record) if waiting else None
        text += _waits(waiting, seconds)
        yield Finding(f"unmatched_{kind}", one.id, [peer], waiting, alone[0], seconds, text)


# --- ranks without a file


def _missing(one: Merged, *, explained: bool) -> Iterator[Finding]:
    missing = set(one.missing)
    waits = [
        f"rank {rank} waits in {_named(record)} for {member.waited(record):.1f} s"
        for rank, member in one.members.items()
        for record in member.communicator.records
        if record.is_open and record.peer in missing
    ]
    text = f"there is no file of {ranks_text(one.missing)}"
    if not explained and not waits:
        text += ", and the others do not wait"
    text += "".join(f"; {wait}" for wait in waits[:_MOST])
    yield Finding("no_file", one.id, one.missing, [], None, None, text)
