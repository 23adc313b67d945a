"""Intervals on paper, for a job that does not run yet: what a state weighs, how fast it can be copied, how often it is lost.

The same rules as in a running job (core.interval), with costs computed where that one measures them. The copy is taken to
stop training for as long as it takes, which is the worst case: it runs beside forward and backward.
"""

import msgspec

from regrow.core.interval import CadenceConfig, Interval, Toil, chosen, effective, expected, in_copies
from regrow.core.save_story import MEMORY

PLACE = "place"
BYTES_PER_PARAM = 12.0
"""AdamW in mixed precision: the weights and two moments in 32 bits."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    params: float
    replicas: int
    mtbf_s: float
    """Between losses of all replicas."""
    bytes_per_s: float
    """At which one state becomes durable at the place."""
    bytes_per_param: float = BYTES_PER_PARAM
    copy_bytes_per_s: float = 10e9
    """At which one replica copies its portion into memory."""
    restart_s: float = 120.0
    """From a loss until the job trains again."""
    overhead: float = 0.01


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """For one tier, as if it answered every loss."""

    where: str
    interval: Interval
    redone_s: float
    """Work that a loss costs on average; with the restart it is what the job loses each time."""
    effective: float
    """The share of time in which the job gets on."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    question: Question
    size_bytes: int
    tiers: tuple[Proposal, ...]
    """Nearest first."""


def advise(question: Question) -> Advice:
    size_bytes = question.params * question.bytes_per_param
    copy_s = size_bytes / question.replicas / question.copy_bytes_per_s
    config = CadenceConfig(overhead=question.overhead, mtbf_s=question.mtbf_s)
    loss = expected(0, 0.0, config)
    memory = chosen(Toil(cost_s=copy_s, durable_s=copy_s, is_known=True), loss, config)
    written_s = max(copy_s, size_bytes / question.bytes_per_s)
    place = chosen(Toil(cost_s=copy_s, durable_s=written_s, is_known=True), loss, config)
    return Advice(
        question=question,
        size_bytes=round(size_bytes),
        tiers=(_proposal(MEMORY, memory, question), _proposal(PLACE, in_copies(place, memory.seconds), question)),
    )


def _proposal(where: str, interval: Interval, question: Question) -> Proposal:
    behind_s = interval.toil.durable_s + question.restart_s
    return Proposal(
        where=where,
        interval=interval,
        redone_s=interval.at_stake_s,
        effective=effective(interval.seconds, interval.toil.cost_s, question.mtbf_s, behind_s),
    )
