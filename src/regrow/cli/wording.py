"""Words and lines that everything told to people is made of."""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

LABEL = 11
"""So wide is what stands before a row of an episode."""


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How it is told."""

    width: int
    every: bool
    last: int
    clock: Callable[[float], str]
    """A wall time as people read it."""
    last_words: Callable[[str], list[str]]
    """The last lines of an output file."""


def span(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.0995 or share == 0 else f"{share * 100:.1f} %"


def ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def counts(counts: "Counter[str]", most: int = 5) -> str:
    common = counts.most_common(most)
    rest = sum(counts.values()) - sum(count for _, count in common)
    return ", ".join(f"{count} x {what}" for what, count in common) + (f", {rest} others" if rest else "")


def and_(names: Iterable[str]) -> str:
    *most, last = list(names) or ["nobody"]
    return f"{', '.join(most)} and {last}" if most else last


def go(names: tuple[str, ...]) -> str:
    return "go" if len(names) > 1 else "goes"


def row(label: str, text: str, manner: Manner) -> Iterator[str]:
    indent = " " * (3 + LABEL)
    yield from textwrap.wrap(
        text,
        manner.width,
        initial_indent=f"   {label:{LABEL}}",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrap(text: str, manner: Manner, indent: str = "   ") -> Iterator[str]:
    yield from textwrap.wrap(
        text, manner.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
