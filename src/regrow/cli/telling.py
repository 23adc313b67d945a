"""A job's tale in plain words, for somebody who was woken up by it.

The cause first. A few failures are each told in full; of many there is a summary, the first one in full (it is the one to
look at) and the last ones, a line each.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from regrow.cli.save_words import began, founded, told_saves
from regrow.cli.wording import LABEL, Manner, and_, counts, go, ordinal, percent, plural, row, span, wrap
from regrow.core.culprits import KINDS, Culprit
from regrow.core.episodes import DataLoss, Episode, Return, Summary, Tale
from regrow.core.suspicion import Poison

_FEW = 4
"""So many episodes are told in full."""
_BAD = ("failed", "state-lost", "dead")


def tell_people(job: str, state: str, tale: Tale, manner: Manner) -> Iterator[str]:
    yield from _headline(job, state, tale, manner)
    if tale.resumed is not None:
        yield from wrap(began(tale.resumed), manner)
    episodes = list(tale.episodes)
    if not episodes:
        yield from _note(tale, manner)
        return
    for poison in tale.poisoned:
        words = Poison(cell=poison.cell, replicas=poison.replicas).words(poison.samples)
        then = "the step went on without it" if poison.decision == "skip" else "the job stopped before that step"
        yield from wrap(f"{words}; {then}", manner)
    decisive = _decisive(state, episodes)
    if decisive is not None and len(episodes) > 1:
        yield ""
        yield "What it ended with:"
        yield from _whole(decisive, state, manner)
    others = [episode for episode in episodes if episode is not decisive or len(episodes) == 1]
    if len(episodes) <= _FEW or manner.every:
        if len(episodes) > _FEW:
            yield from _summary(tale, manner)
        if decisive is not None and len(episodes) > 1:
            yield ""
            yield "Before that:"
        for episode in others:
            yield from _whole(episode, state, manner)
    else:
        yield from _summary(tale, manner)
        yield ""
        yield "The first failure:"
        yield from _whole(others[0], state, manner)
        yield from _latest(others[1:], state, manner)
    yield from _note(tale, manner)


def _decisive(state: str, episodes: list[Episode]) -> Episode | None:
    """What ended the job, when it ended badly: the last thing that went wrong and that nobody recovered from."""
    return episodes[-1] if state in _BAD and episodes[-1].restored_s is None else None


def _headline(job: str, state: str, tale: Tale, manner: Manner) -> Iterator[str]:
    count = tale.summary.failures
    size = f"{len(tale.replicas)} replicas"
    where = f"after {tale.steps} steps and {span(tale.took_s)}, {size}"
    words = {
        "finished": f"finished {where}",
        "stopped": f"was stopped {where}",
        "failed": f"FAILED {where}",
        "state-lost": f"LOST ITS TRAINING STATE {where}",
        "dead": f"DIED {where}: `regrow run` is gone and noted no end (kill -9, or the machine went down)",
        "running": f"is running: at step {tale.steps} after {span(tale.took_s)}, {size}",
    }
    if count == 0 and state not in _BAD:
        told = "nothing failed" if state in ("finished", "stopped") else "nothing has failed"
        yield from wrap(f"{job} {words.get(state, state)}: {told}.", manner)
        return
    yield from wrap(f"{job} {words.get(state, state)}. {plural(count, 'failure')}.", manner)
    if tale.why is not None and state in _BAD:
        yield from wrap(f"cause: {tale.why}", manner)


def _note(tale: Tale, manner: Manner) -> Iterator[str]:
    if tale.data_workers:
        yield from _data_losses(tale.data_workers, manner)
    if tale.saves is not None:
        yield from told_saves(tale.saves, manner)
    for wrong in tale.wrong_states:
        yield ""
        yield from wrap(
            f"{manner.clock(wrong.at)} the state of step {wrong.step} was not on {wrong.donor} what it was on the others: "
            f"{wrong.joiner} has it from those. Look at that host's memory; `regrow migrate` moves the replica elsewhere.",
            manner,
        )
    if tale.incomplete:
        names = ", ".join(tale.incomplete[:3]) + (", ..." if len(tale.incomplete) > 3 else "")
        are = "journal is" if len(tale.incomplete) == 1 else "journals are"
        yield ""
        yield from wrap(
            f"note: {len(tale.incomplete)} {are} not whole ({names}): a line was torn, lost or rotated away, and there may "
            "have been more than is told here.",
            manner,
        )


def _data_losses(losses: tuple[DataLoss, ...], manner: Manner) -> Iterator[str]:
    shown = losses if manner.every else losses[:_FEW]
    them = "was replaced, and what was lost with it" if len(losses) == 1 else "were replaced, and what was lost with them"
    yield ""
    yield from wrap(f"{plural(len(losses), 'data worker')} {them} was made again:", manner)
    for loss in shown:
        making = f" while it made {loss.making}" if loss.making is not None else ""
        count = f" (the {ordinal(loss.losses)} lost there)" if loss.losses > 1 else ""
        told = f"{manner.clock(loss.at)} one of {loss.member} (pid {loss.pid}) {loss.how}{making}{count}"
        yield from wrap(f"   {told}", manner, "      ")
    if len(shown) < len(losses):
        yield f"   {len(losses) - len(shown)} more: --all tells each"


# One episode in full


def _whole(episode: Episode, state: str, manner: Manner) -> Iterator[str]:
    yield ""
    head = f"{episode.number}. "
    names = [culprit.member for culprit in episode.culprits]
    if not names:
        yield from wrap(f"{head}a connection between replicas broke, and everyone lives", manner)
        yield from row("when", _when(episode, None, manner), manner)
    elif len(names) == 1:
        yield from wrap(f"{head}{names[0]} {episode.culprits[0].how}", manner)
        yield from row("when", _when(episode, episode.culprits[0], manner), manner)
    else:
        yield from wrap(f"{head}{and_(names)} failed together", manner)
        yield from row("when", _when(episode, None, manner), manner)
    quoted: set[tuple[str | None, str]] = set()
    for culprit in episode.culprits:
        yield from _evidence(culprit, len(names) > 1, (culprit.place, culprit.how) in quoted, manner)
        quoted.add((culprit.place, culprit.how))
    is_end = state in _BAD and episode.roster is None and any(culprit.is_seated for culprit in episode.culprits)
    if is_end:
        given_up = [_decision(found) for found in episode.returns if found.lost is not None]
        yield from row("decided", "; ".join([*given_up, "the job ended with this"]), manner)
        return
    yield from row("decided", "; ".join(_decisions(episode, state)), manner)
    yield from row("cost", _cost(episode), manner)
    yield from row("back", _back(episode, state), manner)


def _when(episode: Episode, culprit: Culprit | None, manner: Manner) -> str:
    place = _position(culprit) if culprit is not None else ""
    return f"{span(episode.after_s)} after the start ({manner.clock(episode.at)}){place}"


def _position(culprit: Culprit) -> str:
    if culprit.has_left:
        return ", after its last step"
    if culprit.step is None:
        return ", before its first step"
    return f", in step {culprit.step}" + ("" if culprit.lane is None else f", lane {culprit.lane}")


def _evidence(culprit: Culprit, is_named: bool, is_quoted: bool, manner: Manner) -> Iterator[str]:
    if is_named:
        yield from row("who", f"{culprit.member} {culprit.how}{_position(culprit)}", manner)
    if culprit.memory is not None:
        yield from row("memory", f"{culprit.memory}", manner)
        yield from row("evidence", culprit.memory.evidence, manner)
    if culprit.evidence is not None:
        yield from row("evidence", f"stacks and the kernel's view of it: {culprit.evidence}", manner)
    if culprit.traceback and is_quoted:
        yield from row("evidence", f"the same exception, at {culprit.place}", manner)
    elif culprit.traceback:
        yield from row("evidence", f"at {culprit.place}", manner)
        yield from _quote(culprit.traceback.splitlines())
    else:
        words = manner.last_words(culprit.output)
        if words:
            yield from row("evidence", f"the last it printed ({culprit.output}):", manner)
            yield from _quote(words)


def _quote(lines: Iterable[str]) -> Iterator[str]:
    """As it was printed, but for what would steer the terminal."""
    for line in lines:
        legible = "".join(char if char.isprintable() else " " if char == "\t" else "?" for char in line)
        yield f"   {'':{LABEL}}| {legible}"


def _decisions(episode: Episode, state: str) -> Iterator[str]:
    if episode.founding is not None:
        yield founded(episode.founding)
    elif episode.roster is not None and episode.culprits:
        them = "it" if len(episode.culprits) == 1 else "them"
        yield f"{and_(episode.survivors)} {go(episode.survivors)} on without {them} (roster {episode.roster})"
    elif episode.roster is not None:
        yield f"the same replicas connect anew (roster {episode.roster})"
    elif any(culprit.is_seated for culprit in episode.culprits):
        yield "no roster was agreed on after it" if episode.is_over else "the others are about to go on without it"
    else:
        yield "it had no seat yet, so nobody waited for it"
    for found in episode.returns:
        if found.member is None and found.lost is None:
            running, over = f"what becomes of {found.replica} is not decided yet", f"no restart of {found.replica} was noted"
            yield running if state == "running" else over
        else:
            yield _decision(found)


def _decision(found: Return) -> str:
    if found.lost is not None:
        left = "" if found.left is None else f"; {plural(found.left, 'replica')} left, the job needs {found.needed}"
        return f"{found.replica} is not restarted: {found.lost}{left}"
    when = f"after a back-off of {span(found.delay_s)}" if found.delay_s else "at once"
    count = "" if found.used is None else f" (restart {found.used} of {found.limit} within {span(found.window_s or 0.0)})"
    return f"{found.replica} restarts {when} as {found.member}{count}"


def _cost(episode: Episode) -> str:
    if episode.stall_s is not None:
        who = "training" if episode.founding is not None else "the others" if episode.culprits else "everyone"
        cost = f"{who} stood still for {span(episode.stall_s)}"
    elif not any(culprit.is_seated for culprit in episode.culprits) and episode.culprits:
        cost = "nobody stood still"
    else:
        cost = "the others stand still" if not episode.is_over else "nobody went on from here"
    if episode.recomputed_lanes:
        lanes = plural(episode.recomputed_lanes, "lane")
        return f"{cost}; {lanes} computed again ({percent(episode.recomputed_steps)} of a step)"
    return f"{cost}; no finished lane was computed again"


def _back(episode: Episode, state: str) -> str:
    if episode.restored_s is not None:
        helped = [f"{and_(found.donors)} gave {found.member} the state" for found in episode.returns if found.donors]
        return f"at full strength {span(episode.restored_s)} later" + (f": {and_(helped)}" if helped else "")
    lost = [found.replica for found in episode.returns if found.is_given_up]
    if lost:
        return f"never: {and_(lost)} was given up" if len(lost) == 1 else f"never: {and_(lost)} were given up"
    return "not yet" if state == "running" else "never: the job ended before"


# Many of them


def _summary(tale: Tale, manner: Manner) -> Iterator[str]:
    summary = tale.summary
    yield ""
    count = f"{plural(summary.failures, 'failure')} in {plural(len(tale.episodes), 'episode')}"
    yield f"{count} (failures answered together are one)"
    labels = Counter(_label(culprit) for episode in tale.episodes for culprit in episode.culprits)
    labels["a connection broke"] += summary.by_kind.get("connection", 0)
    yield from row("how", counts(+labels), manner)
    yield from row("who", counts(Counter(summary.by_replica)), manner)
    yield from row("stalls", _stalls(summary, tale), manner)
    lanes = plural(summary.recomputed_lanes, "lane")
    yield from row("again", f"{lanes} computed again, worth {summary.recomputed_steps:.1f} of {tale.steps} steps", manner)
    share = percent(summary.weakened_s / summary.training_s) if summary.training_s else "0 %"
    missing = f"a replica was missing for {span(summary.weakened_s)} ({share} of the training time)"
    yield from row("weakened", f"{missing}; steps that took longer meanwhile are not in the stalls", manner)
    for replica, why in summary.lost.items():
        yield from row("given up", f"{replica}: {why}", manner)


def _stalls(summary: Summary, tale: Tale) -> str:
    if summary.worst is None:
        return "nobody had to stand still"
    share = percent(summary.stall_s / summary.training_s) if summary.training_s else "0 %"
    worst = tale.episodes[summary.worst - 1]
    told = f"everyone stood still for {span(summary.stall_s)} of {span(summary.training_s)} of training ({share})"
    return f"{told}; at worst {span(worst.stall_s or 0.0)}, in number {worst.number}"


def _label(culprit: Culprit) -> str:
    if culprit.kind == "exception":
        return f"{culprit.how.partition(':')[0]} at {culprit.place}"
    return culprit.how if culprit.kind in ("signal", "exit") else KINDS.get(culprit.kind, culprit.kind)


def _latest(episodes: list[Episode], state: str, manner: Manner) -> Iterator[str]:
    shown = episodes[len(episodes) - manner.last :] if manner.last else []
    hidden = len(episodes) - len(shown)
    yield ""
    if not shown:
        yield f"{hidden} more: --all tells each in full, --last N the last ones in short"
        return
    yield f"The last {len(shown)}" + (f" ({hidden} more between: --all tells each in full)" if hidden else "") + ":"
    for episode in shown:
        yield from wrap(_brief(episode, state, manner), manner, "        ")


def _brief(episode: Episode, state: str, manner: Manner) -> str:
    who = "; ".join(f"{culprit.member} {culprit.how}" for culprit in episode.culprits) or "a connection broke"
    parts = [f"stall {span(episode.stall_s)}" if episode.stall_s is not None else "no stall"]
    if episode.recomputed_lanes:
        parts.append(f"{plural(episode.recomputed_lanes, 'lane')} again")
    back = f"back after {span(episode.restored_s)}" if episode.restored_s is not None else f"back {_back(episode, state)}"
    return f"  {episode.number}. {manner.clock(episode.at)} {who}: {', '.join([*parts, back])}"
