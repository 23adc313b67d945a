"""What a soak does to a job, and when: an endless sequence of volleys, a pure function of the seed.

Whom a blow hits is not decided here. The schedule draws a number, and the striker picks with it among those that live at
that moment, which no seed decides.
"""

import random
from collections.abc import Iterator
from typing import Literal

import msgspec

Kind = Literal["kill", "segfault", "terminate", "stop", "hang", "spin", "warm-parent", "coordinator", "vault", "everybody"]

MEANINGS: dict[Kind, str] = {
    "kill": "SIGKILL to a worker",
    "segfault": "SIGSEGV to a worker",
    "terminate": "SIGTERM to a worker",
    "stop": "SIGSTOP to a worker, SIGCONT a while later",
    "hang": "SIGSTOP to a worker, for good",
    "spin": "an endless loop in a worker's main thread",
    "warm-parent": "SIGKILL to the process from which workers are forked",
    "coordinator": "SIGKILL to the coordinator, started again a while later",
    "vault": "SIGKILL to the vault, in a job that saves",
    "everybody": "SIGKILL to all workers, in a job whose state is in memory",
}
_WEIGHTS: dict[Kind, int] = {
    "kill": 6,
    "segfault": 1,
    "terminate": 1,
    "stop": 2,
    "hang": 1,
    "spin": 1,
    "warm-parent": 1,
    "coordinator": 3,
    "vault": 1,
    "everybody": 1,
}
_PACES_S = (0.05, 0.3, 1.0, 4.0)
"""Mean waits between volleys: into a recovery, around its end, and long enough for full strength."""
_LONGEST_WAIT_S = 8.0
_LONGEST_S = 3.0
"""Of a stop: beyond the shortest silence that is called a hang. Of a coordinator's absence: joins and deaths pile up."""


class Blow(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    draw: float
    """In [0, 1): which of those that may be hit."""
    lasts_s: float
    """Until a stopped worker goes on, or a dead coordinator is started again."""


class Volley(msgspec.Struct, frozen=True, kw_only=True):
    """Blows at one moment; more than one is a burst."""

    after_s: float
    """Since the volley before."""
    blows: tuple[Blow, ...]


def length(seed: str) -> int | None:
    """The steps of a job that is to end by itself under blows; None for one that goes on until it is stopped."""
    chance = random.Random(f"length of {seed}")
    return chance.choice((None, chance.randrange(100, 800)))


def flows(seed: str) -> bool:
    """Do the job's gradients travel one by one while it computes the others? Else they go whole, being so few."""
    return random.Random(f"flow of {seed}").random() < 0.5


def saves(seed: str) -> bool:
    """Is the job's state saved, so that it outlives all of its replicas?"""
    return random.Random(f"saves of {seed}").random() < 0.5


def logs(seed: str) -> bool:
    """Is each committed step of a job that saves logged as well? Then no step is computed again, whoever is killed."""
    return saves(seed) and random.Random(f"logs of {seed}").random() < 0.5


def volleys(seed: str, replicas: int) -> Iterator[Volley]:
    """Endless; the same for the same arguments on every machine."""
    chance = random.Random(seed)
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    while True:
        wait_s = min(_LONGEST_WAIT_S, chance.expovariate(1 / chance.choice(_PACES_S)))
        size = chance.choice((1, 1, 1, 1, 2, max(2, replicas - 1), replicas + 1))
        blows = tuple(
            Blow(kind=kind, draw=chance.random(), lasts_s=chance.uniform(0.0, _LONGEST_S))
            for kind in chance.choices(kinds, weights, k=size)
        )
        yield Volley(after_s=wait_s, blows=blows)
