"""How long a tier waits from one save to the next: a pure function of what a save costs and of how often its tier is needed.

Between two saves work is at stake, and each save costs training something. Young and Daly say where the sum is least, if
losses come at random with a mean time M between them and a save costs C: close to sqrt(2 C M), a little longer where C is
not small against M. That is where it starts. Three things move it, the later ones above the earlier:

- the budget: saves are to cost at most this share of training, however much more would be saved by them;
- the limit: nobody wants to lose more than so much, whatever the means say;
- the tier: one that takes D to make a state durable is at work for at most half of the time, which nothing can overrule.

Intervals are on the wall clock, from the moment at which one save is taken to that of the next.
"""

import math
from typing import Literal

import msgspec

LEAST_COST_S = 0.001
"""A save that costs less is taken to cost so much: it is below what a step's time can show. So it is with one that nobody
has measured yet: the first save comes early, and what it costs decides when the second one comes."""
_SHARE_AT_WORK = 0.5
_EARLY = 0.25
"""A place takes the copy that is made anyway when so much of a copy's interval is lacking to its own."""

Bound = Literal["optimum", "budget", "limit", "tier"]
Basis = Literal["given", "measured", "assumed"]


class CadenceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator said about intervals that are not fixed."""

    overhead: float = 0.01
    """Saves are to cost at most this share of training."""
    mtbf_s: float | None = None
    """Between two moments at which every replica is lost. None: by what is seen of this job."""
    limit_s: float = 3600.0
    """No interval is longer, unless the tier takes longer to make one state durable."""
    prior_s: float = 86_400.0
    """Before anything was seen: one loss of everything in so long. Too early is cheap: a save that costs 0.1 s is then made
    every two minutes, for 0.08 % of training."""


class Toil(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a tier."""

    cost_s: float
    """What a save costs training, all members waiting for the slowest."""
    durable_s: float
    """From the moment at which the tier takes a state until it is safe there."""
    is_known: bool
    """Measured, or computed on paper. Else assumed: there was no save yet."""


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """How often a tier is needed."""

    mtbf_s: float
    basis: Basis
    count: int = 0
    """So many were seen."""
    seen_s: float = 0.0
    """In so long."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """An interval with its reasons."""

    seconds: float
    bound: Bound
    """What made it as long as it is."""
    toil: Toil
    loss: Loss
    overhead: float
    """The budget."""
    copies: int = 1
    """The tier takes each of so many copies in memory: a save that is made anyway costs training nothing more."""

    @property
    def share(self) -> float:
        """Of training, what saves at this interval cost."""
        return min(1.0, self.toil.cost_s / self.seconds)

    @property
    def at_stake_s(self) -> float:
        """Of work, on average, when everything is lost."""
        return self.seconds / 2 + self.toil.durable_s


def best_s(cost_s: float, mtbf_s: float) -> float:
    """At which the least time is lost, by Daly's higher order; where a save costs more than twice the time between losses he
    has no better advice than that time itself."""
    ratio = cost_s / (2 * mtbf_s)
    if ratio >= 1:
        return mtbf_s + cost_s
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9)


def effective(interval_s: float, cost_s: float, mtbf_s: float, behind_s: float) -> float:
    """The share of time in which the job gets on, when losses come at random. `behind_s`: what each costs besides the work
    since the last save: the restart, and what was not yet durable."""
    stretch = (interval_s + behind_s) / mtbf_s
    if stretch > 700:  # e to that is beyond what a float holds
        return 0.0
    work = max(0.0, interval_s - cost_s)
    return work / (mtbf_s * math.exp(behind_s / mtbf_s) * math.expm1(interval_s / mtbf_s))


def chosen(toil: Toil, loss: Loss, config: CadenceConfig) -> Interval:
    toil = msgspec.structs.replace(toil, cost_s=max(toil.cost_s, LEAST_COST_S))
    seconds, bound = best_s(toil.cost_s, loss.mtbf_s), "optimum"
    if (least_s := toil.cost_s / config.overhead) > seconds:
        seconds, bound = least_s, "budget"
    if config.limit_s < seconds:
        seconds, bound = config.limit_s, "limit"
    if (least_s := toil.durable_s / _SHARE_AT_WORK) > seconds:
        seconds, bound = least_s, "tier"
    return Interval(seconds=seconds, bound=bound, toil=toil, loss=loss, overhead=config.overhead)  # type: ignore[arg-type]


def in_copies(interval: Interval, copy_s: float) -> Interval:
    """As a whole number of copies, which are made every `copy_s`: so the tier wishes no save of its own."""
    copies = interval.seconds / copy_s
    count = max(1, math.floor(copies) if interval.bound == "limit" else math.ceil(copies - _EARLY))
    return msgspec.structs.replace(interval, seconds=count * copy_s, copies=count)


def expected(count: int, seen_s: float, config: CadenceConfig) -> Loss:
    """The mean time between losses, of which so many were seen in so long. Before the first one it is the prior and the time
    since; each further one weighs as much as the prior does."""
    if config.mtbf_s is not None:
        return Loss(mtbf_s=config.mtbf_s, basis="given", count=count, seen_s=seen_s)
    mean_s = (config.prior_s + seen_s) / (1 + count)
    return Loss(mtbf_s=mean_s, basis="measured" if count else "assumed", count=count, seen_s=seen_s)
