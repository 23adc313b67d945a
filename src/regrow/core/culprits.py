"""Who failed, and how that is known.

A new kind of cause gets a function that recognises it, a line in _RECOGNISERS (the first that answers is believed, so the
most telling come first), and a name in KINDS.
"""

import re

import msgspec

from regrow.core.chronicle import Chronicle, Life
from regrow.core.memory import Memory
from regrow.core.progress import Place
from regrow.core.records import WorkerRaised
from regrow.core.roster import Member

KINDS = {
    "out-of-memory": "ran out of memory",
    "exception": "raised an exception",
    "signal": "died by a signal",
    "exit": "exited with another code than 0",
    "hang": "hung",
    "eviction": "fell silent and was replaced",
    "left": "left the job by itself",
    "start": "could not be started",
    "connection": "lost a connection, and nobody died",
}

_MESSAGE_CHARS = 300
"""Some exceptions quote whole tensors; the traceback has all of it."""


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """One member that failed."""

    member: str
    replica: str
    kind: str
    """One of KINDS."""
    how: str
    """The end of a sentence that begins with the member's name."""
    at: float
    """Wall clock, seconds."""
    ns: int
    """The host's monotonic clock: when the job noticed."""
    is_seated: bool
    """It had a seat in the newest roster that is known, or in one that another roster took over from because of it."""
    has_left: bool = False
    """It had committed the last step, and all had acknowledged that."""
    step: int | None = None
    lane: int | None = None
    place: str | None = None
    """file:line, for an exception."""
    traceback: str | None = None
    memory: Memory | None = None
    evidence: str | None = None
    """What was kept of a hang before the kill: a path in the run directory."""
    output: str
    """What it printed: a path in the run directory."""


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    how: str
    memory: Memory | None = None


_TIDYING = re.compile(
    r"left as planned|was ended( before it started)?: "
    r"(the job is (over|ending)|it is not needed|it was told to end|it holds no state)"
)


def culprits(chronicle: Chronicle) -> list[Culprit]:
    """Everyone that failed. Whoever left as planned, or was ended because it was not needed any more, has not."""
    evicted = {
        member
        for made in chronicle.rosters
        if made.roster.cause.startswith(("evicted-", "hung-")) and (member := _member(made.roster.cause)) is not None
    }
    failed = [
        member
        for member, (_, exit) in chronicle.exited.items()
        if not exit.clean and not is_tidying(exit.how) and not _has_handed_over(chronicle, member)
    ]
    everyone = dict.fromkeys([*failed, *chronicle.raised, *evicted])
    return [_culprit(chronicle, member) for member in everyone]


def is_tidying(how: str) -> bool:
    """Did it end because the job does, or does not need it?"""
    return _TIDYING.match(how) is not None


def _has_handed_over(chronicle: Chronicle, member: Member) -> bool:
    """It left as planned."""
    life = chronicle.life(member)
    return life is not None and life.departed is not None and life.departed.fault == "left"


def _member(cause: str) -> Member | None:
    replica, dot, incarnation = cause.partition("-")[2].rpartition(".")
    return Member(replica, int(incarnation)) if dot and incarnation.isdigit() else None


def _culprit(chronicle: Chronicle, member: Member) -> Culprit:
    exit, raised = chronicle.exited.get(member), chronicle.raised.get(member)
    life = chronicle.life(member)
    seen = next((seen for recognise in _RECOGNISERS if (seen := recognise(chronicle, member)) is not None), None)
    # The roster that evicts somebody comes before the end of its process; any other answer comes after it.
    evictions = (f"evicted-{member}", f"hung-{member}")
    lines = [made.line for made in chronicle.rosters if made.roster.cause in evictions]
    lines += [line for line, _ in (found for found in (exit, raised) if found is not None)]
    fact = raised[1] if raised is not None else None
    answered = [made for made in chronicle.rosters if made.roster.cause in (f"died-{member}", *evictions)]
    hung = chronicle.hung.get(member)
    place = hung[1].place if hung is not None else exit[1].place if exit is not None else None
    return Culprit(
        member=str(member),
        replica=member.replica,
        kind=seen.kind if seen else "exit",
        how=seen.how if seen else "ended",
        at=lines[0].at,
        ns=lines[0].ns,
        is_seated=bool(chronicle.rosters)
        and (member in chronicle.rosters[-1].members or bool(answered) or chronicle.refounding(member) is not None),
        has_left=(life is not None and life.departed is not None and life.departed.fault is None)
        or (place is not None and place.is_past_the_end),
        step=_step(fact, place, life),
        lane=fact.lane if fact is not None else place.lane if place is not None else None,
        place=fact.place if fact is not None else None,
        traceback=fact.traceback if fact is not None else None,
        memory=seen.memory if seen else None,
        evidence=hung[1].evidence if hung is not None else None,
        output=f"output/{member}.log",
    )


def _step(raised: WorkerRaised | None, place: Place | None, life: Life | None) -> int | None:
    """By its exception, its last stamp, or its own journal."""
    told = [raised.step if raised else None, place.step if place else None, life.step if life else None]
    return next((step for step in told if step is not None), None)


def _starved(chronicle: Chronicle, member: Member) -> _Seen | None:
    exit, raised = chronicle.exited.get(member), chronicle.raised.get(member)
    if exit is not None and exit[1].memory is not None:
        return _Seen(kind="out-of-memory", how=exit[1].how.partition(" (")[0], memory=exit[1].memory)
    if raised is not None and raised[1].memory is not None:
        return _Seen(kind="out-of-memory", how=f"ran out of memory: {_message(raised[1])}", memory=raised[1].memory)
    return None


def _raised(chronicle: Chronicle, member: Member) -> _Seen | None:
    raised = chronicle.raised.get(member)
    return _Seen(kind="exception", how=f"raised {_message(raised[1])}") if raised is not None else None


def _message(raised: WorkerRaised) -> str:
    """The exception as the traceback's end tells it, on one line."""
    name = raised.kind.rpartition(".")[2]
    told = [row for row in raised.traceback.splitlines() if re.match(rf"([\w.]+\.)?{re.escape(name)}\b", row)]
    return told[-1].strip()[:_MESSAGE_CHARS] if told else raised.kind


def _left(chronicle: Chronicle, member: Member) -> _Seen | None:
    life = chronicle.life(member)
    departed = life.departed if life is not None else None
    if departed is None or departed.fault is None or departed.fault == "evicted":
        return None
    return _Seen(kind="left", how=f"left the job: {departed.why}")


def _hung(chronicle: Chronicle, member: Member) -> _Seen | None:
    hung = chronicle.hung.get(member)
    if hung is None:
        return None
    fact = hung[1]
    return _Seen(kind="hang", how=f"hung: silent for {fact.silent_s:.1f} s, its limit was {fact.limit_s:.1f} s ({fact.why})")


def _evicted(chronicle: Chronicle, member: Member) -> _Seen | None:
    for made in chronicle.rosters:
        if made.roster.cause == f"evicted-{member}":
            return _Seen(kind="eviction", how=f"was {made.roster.why.removeprefix(f'{member} is ')}")
    return None


def _ended(chronicle: Chronicle, member: Member) -> _Seen | None:
    exit = chronicle.exited.get(member)
    if exit is None:
        return None
    how = exit[1].how
    if how.startswith(("could not be started", "was lost while starting", "was ended before it started")):
        return _Seen(kind="start", how=how)
    if how.startswith("exited with code"):
        return _Seen(kind="exit", how=how)
    return _Seen(kind="signal", how=f"was {how}" if how.startswith("killed by") else how)


_RECOGNISERS = (_starved, _raised, _hung, _left, _evicted, _ended)
