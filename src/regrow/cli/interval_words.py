"""Why an interval is as long as it is, in words."""

from regrow.cli.wording import plural, span
from regrow.core.interval import Interval, Loss
from regrow.core.records import IntervalChosen


def interval_words(chosen: IntervalChosen) -> str:
    interval = chosen.interval
    if interval is None:
        return f"every {plural(chosen.every, 'step')}, as it was said"
    return f"every {span(interval.seconds)}{_copies(interval)}: {why(interval)}"


def why(interval: Interval) -> str:
    toil, loss = interval.toil, interval.loss
    cost = f"a save costs training {_little(toil.cost_s)}{'' if toil.is_known else ' (assumed, none was measured yet)'}"
    durable = span(toil.durable_s)
    match interval.bound:
        case "optimum":
            reason = f"{cost}, and the least time is lost so where {_lost(loss)}"
        case "budget":
            reason = f"{cost}, which may be {small(interval.overhead)} of the time and no more"
        case "limit":
            reason = f"no interval is longer, though {cost}, and {_lost(loss)}"
        case "tier":
            reason = f"a state takes {durable} until it is safe there, and as long is left free after each"
    return f"{reason}; {small(interval.share)} of training"


def small(share: float) -> str:
    """A share that is far from the whole."""
    return f"{share * 100:.2g} %"


def _copies(interval: Interval) -> str:
    return f" (one of {interval.copies} copies in memory)" if interval.copies > 1 else ""


def _little(seconds: float) -> str:
    return span(seconds) if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def _lost(loss: Loss) -> str:
    rate = f"everything is lost once in {span(loss.mtbf_s)}"
    match loss.basis:
        case "given":
            return f"{rate}, as it was said"
        case "assumed":
            return f"{rate}, an assumption: nothing was lost in {span(loss.seen_s)}"
        case "measured":
            return f"{rate}, by {plural(loss.count, 'loss').replace('losss', 'losses')} in {span(loss.seen_s)}"
