"""What became of a job's saves, in words: those that came to nothing, and what a job began from."""

from collections.abc import Iterable, Iterator

from regrow.cli.gauge import size
from regrow.cli.wording import Manner, plural, span, wrap
from regrow.core.founding import Founding
from regrow.core.save_story import MEMORY, SaveStory, Setback

_FEW = 4
"""So many of a kind are told, unless all are asked for."""


def began(founding: Founding) -> str:
    """Of a job that was resumed."""
    return f"It began from {origin(founding)}.{_differences(founding)}"


def founded(founding: Founding) -> str:
    """As what was decided when everybody was lost."""
    lost = founding.reached - founding.through
    back = f"{plural(lost, 'step')} back" if lost > 0 else "no step back"
    told = f"nobody was left, and the job was founded again from step {founding.through}, {back}, from {_source(founding)}"
    return f"{told} (roster {founding.roster}{_served(founding, ', ')}){_differences(founding)}"


def origin(founding: Founding) -> str:
    """Which state, which tier served it, and how long that took."""
    return f"step {founding.through}, from {_source(founding)}{_served(founding)}"


def _source(founding: Founding) -> str:
    """Where it lay."""
    if not founding.records:
        return founding.where
    return f"{founding.where} and {plural(founding.records, 'record')} after step {founding.step}"


def told_saves(saves: SaveStory, manner: Manner) -> Iterator[str]:
    """What went wrong; nothing when nothing did."""
    for death in saves.vault_deaths if manner.every else saves.vault_deaths[:_FEW]:
        kept, gone = "it was started again, and found what was whole in memory", "nothing was saved from there on"
        then = kept if death.is_replaced else gone
        yield ""
        yield from wrap(f"{manner.clock(death.at)} the vault (pid {death.pid}) {death.how}: {then}", manner)
    if not manner.every and len(saves.vault_deaths) > _FEW:
        yield f"   {len(saves.vault_deaths) - _FEW} more deaths of it: --all tells each"
    count = plural(len(saves.voided), "save")
    yield from _setbacks(f"{count} came to nothing, and another was made instead:", saves.voided, manner)
    count = plural(len(saves.given_up), "save")
    were = "was" if len(saves.given_up) == 1 else "were"
    yield from _setbacks(f"{count} {were} given up by a place:", saves.given_up, manner)
    count = plural(len(saves.passed_over), "saved state")
    were = "was" if len(saves.passed_over) == 1 else "were"
    yield from _setbacks(f"{count} {were} harmed, and passed over or mended:", saves.passed_over, manner)
    for tier in saves.tiers:
        if tier.trouble:
            newest = "nothing is there yet" if tier.step is None else f"the newest state there is that of step {tier.step}"
            is_told = "(given up)" in tier.trouble
            yield ""
            yield from wrap(f"{tier.where}: {newest}" + ("" if is_told else f"; {tier.trouble}"), manner)
    if saves.waits:
        total, longest = span(saves.waited_s), span(saves.longest_wait_s)
        times = f"{saves.waits} times, for {total} in all and at most {longest}" if saves.waits > 1 else f"for {total}"
        yield ""
        yield from wrap(f"Replicas stood still for saves {times}: {saves.longest_why}", manner)


def _served(founding: Founding, before: str = ": ") -> str:
    """How much, and how long it took; empty when nobody noted it."""
    parts = []
    if founding.size_bytes is not None and founding.found_s is not None:
        tiers = ", ".join(f"{size(one.size_bytes)} of {one.where} in {span(one.seconds)}" for one in founding.served)
        several = f" ({tiers})" if len(founding.served) > 1 else ""
        parts.append(f"{size(founding.size_bytes)} found in {span(founding.found_s)}{several}")
    if founding.loaded_s is not None:
        parts.append(f"loaded in {span(founding.loaded_s)}")
    if founding.replayed_s is not None:
        parts.append(f"{plural(founding.records, 'step')} replayed in {span(founding.replayed_s)}")
    return before + ", ".join(parts) if parts else ""


def _differences(founding: Founding) -> str:
    return f" From there on it is another job: {'; '.join(founding.differences)}." if founding.differences else ""


def _setbacks(head: str, setbacks: tuple[Setback, ...], manner: Manner) -> Iterable[str]:
    if not setbacks:
        return
    shown = setbacks if manner.every else setbacks[-_FEW:]
    yield ""
    yield head
    if len(shown) < len(setbacks):
        yield f"   {len(setbacks) - len(shown)} before these: --all tells each"
    for setback in shown:
        where = "" if setback.where == MEMORY else f" in {setback.where}"
        what = f"step {setback.step}" if setback.step >= 0 else "a state"  # nobody could read of which
        yield from wrap(f"   {manner.clock(setback.at)} {what}{where}: {setback.why}", manner, "      ")
