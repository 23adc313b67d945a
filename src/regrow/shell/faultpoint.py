"""Fault points: named places in the code at which a test may break this very process.

`regrow run --fault r1:backward:step=3:SIGKILL` arms a point in replica r1; unarmed, passing one costs a dictionary look-up.

    SPEC    = TARGET ":" POINT [":" KEY "=" VALUE]... ":" ACTION       several are joined with ","
    TARGET  = replica ("r1") or member ("r1.0"); a bare replica means incarnation 0 of it; "*" is whoever comes there first;
              "coordinator" is a coordinator of its own (regrow coordinator --fault)
    KEY     = step | lane | bucket | roster (its n) | nth (the nth time the point matches, from 1)
    ACTION  = SIGKILL | SIGSEGV | SIGSTOP | raise | exit | hang
"""

import os
import signal
import threading
from pathlib import Path
from typing import NoReturn

import msgspec

from regrow.core.errors import ConfigError
from regrow.core.roster import Member

POINTS = {
    "start": "in the script, before join",
    "join": "joined the job, before its first roster",
    "forward": "about to hand a microbatch to the script",
    "backward": "inside step.backward, before autograd runs",
    "lane": "a lane is done, nobody knows yet",
    "reduce": "about to reduce",
    "bucket": "a bucket is added up here, nobody has its result",
    "waiting": "in a collective, for the others",
    "reduced": "holds the complete result, has not stated it",
    "boundary": "about to state its row",
    "passed": "has passed the boundary, the optimizer has not run",
    "entered": "the optimizer has run, the next step is about to start",
    "form": "about to form a roster's groups",
    "resolve": "about to state what it holds",
    "resolved": "has seen the resolve table",
    "serve": "a donor, about to offer its state",
    "serving": "a donor, in the middle of what it sends",
    "snapped": "a donor, holds a snapshot for joiners",
    "offered": "a donor, has said what it holds, nothing of it is given or declared",
    "declared": "a donor, has declared the digests of its pieces",
    "attached": "a member, a listener has come, its snapshot is not taken yet",
    "feeding": "a member, in the middle of its part of a record",
    "fetch": "a joiner, about to ask for state",
    "fetched": "a joiner, state loaded, about to take part",
    "load": "a listener, about to load a snapshot",
    "loaded": "a listener, the snapshot loaded, about to replay",
    "audit": "a listener, has computed a lane again, nobody has compared it yet",
    "switched": "goes on under a planned roster, has not committed the step before it",
    "handover": "about to state the row that may be its last: it leaves as planned",
    "farewell": "past the last step, about to acknowledge the end",
    "after": "after the loop",
    "save-copied": "a save: its bytes are in the arena, none is in the store",
    "save-shard": "a save: one more shard is durable",
    "save-manifest": "a save: all shards are durable, about to write the manifest",
    "save-pointer": "a save: about to create the pointer that makes it count",
    "save-done": "a save: complete, nobody knows yet",
    "save-prune": "a save: known to be durable, about to remove an older one",
    "restore-read": "about to read a checkpoint's tensors",
    "restore-pass": "one more stretch of a checkpoint has come to this rank, or has been passed on by it",
    "deposit": "about to ask the vault for an arena",
    "depositing": "in the middle of copying its portion of a save",
    "deposited": "its portion is in the arena, the vault does not know yet",
    "recall": "a founder, about to load the origin",
    "recalled": "a founder, the origin loaded, about to take part",
    "prelogging": "a piece of its part of a result is in its log, and the result not complete yet",
    "logging": "about to write its part of the result into its log",
    "copying": "its part is in its log, and on its way to the neighbour",
    "logged": "its part is in its log, its row is not stated",
    "replaying": "a founder, about to read a committed step out of the logs",
    "replayed": "a founder, has been through all that was committed, about to take part",
    "vault-open": "the vault, about to open",
    "vault-lend": "the vault, about to lend an arena",
    "vault-whole": "the vault, has every portion, the label is not written",
    "vault-kept": "the vault, the label is written, nobody knows yet",
    "vault-seek": "the vault, about to bring an origin into memory",
    "persist": "the coordinator, about to make a decision durable",
    "persisted": "the coordinator, has made a decision durable, nobody knows yet",
    "made": "the coordinator, about to note a durable roster in its journal",
    "push": "the coordinator, about to push a roster to one member",
    "order": "the coordinator, about to order a start",
    "doom": "the coordinator, about to order a kill",
    "save-block": "a store, about to write one block of a file, to name the file, or to make the name durable",
    "end": "the coordinator, about to tell the agent that the job is over",
}
ACTIONS = ("SIGKILL", "SIGSEGV", "SIGSTOP", "raise", "exit", "hang")


COORDINATOR = Member("coordinator", 0)
"""As whom a coordinator arms itself."""


class FaultInjected(RuntimeError):
    """What the action "raise" raises."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    target: Member | None
    """None: the first of all members to get there, and only that one."""
    point: str
    where: dict[str, int]
    action: str


def parse(spec: str) -> tuple[Fault, ...]:
    return tuple(_parse_one(part) for part in spec.split(",") if part)


def _parse_one(spec: str) -> Fault:
    head, *rest = spec.split(":")
    if len(rest) < 2 or rest[0] not in POINTS or rest[-1] not in ACTIONS:
        raise ConfigError(
            f"fault {spec!r} is not TARGET:POINT[:KEY=VALUE]:ACTION with a point of {', '.join(POINTS)} "
            f"and an action of {', '.join(ACTIONS)}"
        )
    replica, dot, incarnation = head.partition(".")
    try:
        where = {key: int(value) for key, value in (pair.split("=") for pair in rest[1:-1])}
        target = None if head == "*" else Member(replica, int(incarnation) if dot else 0)
    except ValueError as error:
        raise ConfigError(f"fault {spec!r}: {error}") from error
    return Fault(target=target, point=rest[0], where=where, action=rest[-1])


class _Armed(msgspec.Struct, kw_only=True):
    fault: Fault
    latch: Path
    """Exists once somebody was struck by a fault aimed at anybody."""
    matched: int = 0


_armed: dict[str, list[_Armed]] = {}


def arm(spec: str, me: Member, run_dir: Path) -> None:
    """Arm the faults aimed at this member; called once at the worker's door."""
    for number, fault in enumerate(parse(spec)):
        if fault.target in (me, None):
            _armed.setdefault(fault.point, []).append(_Armed(fault=fault, latch=run_dir / f"struck-{number}"))


def faultpoint(point: str, **where: int) -> None:
    """Pass a named point."""
    for armed in _armed.get(point, ()):
        wanted = {key: value for key, value in armed.fault.where.items() if key != "nth"}
        if any(where.get(key) != value for key, value in wanted.items()):
            continue
        armed.matched += 1
        if armed.matched == armed.fault.where.get("nth", 1) and (armed.fault.target or _is_first(armed.latch)):
            _strike(armed.fault)


def _is_first(latch: Path) -> bool:
    try:
        latch.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _strike(fault: Fault) -> None:
    if fault.action.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, fault.action))
        # To a process with several threads it may land a moment later. One that was stopped goes on here once continued.
        threading.Event().wait(1.0 if fault.action == "SIGSTOP" else 60.0)
    elif fault.action == "raise":
        raise FaultInjected(f"fault injected at {fault.point}")
    elif fault.action == "exit":
        raise SystemExit(1)
    else:
        _hang()


def _hang() -> NoReturn:
    while True:
        threading.Event().wait(3600)
