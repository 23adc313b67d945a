"""A scene as rows of text, for a screen of any size. Pure."""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from rich.cells import cell_len, set_cell_size

from regrow.agent.region import Row
from regrow.cli.scene import Mood, ReplicaScene, Scene

Tone = Literal["plain", "bold", "dim", "good", "warn", "bad"]
_SGR: dict[Tone, str] = {"plain": "", "bold": "1", "dim": "2", "good": "32", "warn": "33", "bad": "31"}
_TONES: dict[Mood, Tone] = {"well": "good", "coming": "warn", "ill": "bad", "out": "dim"}
_HAPPENINGS = 3
_LANES = 18
"""Cells for the lanes, before they are cut."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    tone: Tone = "plain"


def picture(scene: Scene, columns: int, lines: int, is_coloured: bool) -> list[Row]:
    """At most half of the screen, and never its last column: what fills a row makes terminals wrap."""
    width = max(1, columns - 1)
    limit = max(1, lines // 2)
    head = list(_head(scene, width))[: max(1, limit - 2)]
    room = limit - len(head)
    happenings = min(_HAPPENINGS, len(scene.happenings), max(0, room - min(len(scene.replicas), max(1, room // 2))))
    replicas = list(_replicas(scene.replicas, room - happenings))
    body = [*replicas, *_happenings(scene, happenings)]
    return [_paint(_cut(pieces, width), is_coloured) for pieces in [*head, *body]]


# What it says


def _head(scene: Scene, width: int) -> Iterator[list[Piece]]:
    """The facts one after the other, on as many rows as they need."""
    job = _legible(scene.job)
    row: list[Piece] = [Piece(text=job, tone="bold")]
    used = cell_len(job)
    for piece in _facts(scene):
        if used + 3 + cell_len(piece.text) > width:
            yield row
            row, used = [Piece(text="  ")], -1
        row += [Piece(text=" | ", tone="dim"), piece] if used >= 0 else [piece]
        used += 3 + cell_len(piece.text)
    yield row


def _facts(scene: Scene) -> Iterator[Piece]:
    if scene.step is None:
        yield Piece(text="starting", tone="warn")
    else:
        of = "" if scene.steps is None else f" of {scene.steps}"
        yield Piece(text=f"step {scene.step}{of}", tone="bold")
    if scene.waits:
        yield Piece(text=f"waits: {scene.waits}", tone="bad")
    if scene.loss is not None:
        yield Piece(text=f"loss {_number(scene.loss)}", tone="plain" if math.isfinite(scene.loss) else "bad")
    if scene.rate is not None:
        yield Piece(text=_rate(scene.rate))
    yield Piece(text=_clock(scene.elapsed_s))
    restarts = f"{scene.restarts} of {scene.max_restarts} restarts"
    yield Piece(text=restarts, tone="plain" if scene.restarts < scene.max_restarts else "bad")
    away = scene.is_coordinator_away
    yield Piece(text=f"coordinator {'away' if away else 'here'}", tone="bad" if away else "plain")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "is not finite"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.3e}"


def _rate(rate: float) -> str:
    return f"{rate:.1f} steps/s" if rate >= 1 else f"{1 / rate:.1f} s/step" if rate > 1e-6 else "standing still"


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(max(0.0, seconds)), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def _replicas(replicas: Sequence[ReplicaScene], room: int) -> Iterator[list[Piece]]:
    """All of them, or those in trouble first and a sum of the rest."""
    if room < 1:
        return
    shown, rest = list(replicas), list[ReplicaScene]()
    if len(replicas) > room:
        by_need = sorted(range(len(replicas)), key=lambda at: replicas[at].mood == "well")
        shown = [replicas[at] for at in sorted(by_need[: room - 1])]
        rest = [replicas[at] for at in by_need[room - 1 :]]
    names = [_legible(replica.name) for replica in shown]
    pids = [str(replica.pid or "-") for replica in shown]
    lanes = [_short(_lanes(replica.lanes)) for replica in shown]
    columns = (_column(names), [pid.rjust(max(map(len, pids))) for pid in pids], _column(lanes))
    for name, pid, own, replica in zip(*columns, shown, strict=True):
        yield [Piece(text=f"  {name}  {pid}  {own}  "), Piece(text=_legible(replica.state), tone=_TONES[replica.mood])]
    if rest:
        well = sum(replica.mood == "well" for replica in rest)
        yield [Piece(text=f"  and {len(rest)} more, {well} of them well", tone="dim")]


def _lanes(lanes: tuple[int, ...] | None) -> str:
    """As ranges: 0-3 6."""
    if lanes is None:
        return "-"
    ranges: list[list[int]] = []
    for lane in sorted(lanes):
        if ranges and lane == ranges[-1][1] + 1:
            ranges[-1][1] = lane
        else:
            ranges.append([lane, lane])
    text = " ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return f"lanes {text}" if len(lanes) > 1 else f"lane {text}" if lanes else "no lanes"


def _happenings(scene: Scene, most: int) -> Iterator[list[Piece]]:
    for happening in scene.happenings[len(scene.happenings) - most :]:
        tone: Tone = "dim" if happening.is_routine else "plain"
        yield [Piece(text=f"  {happening.clock} ", tone="dim"), Piece(text=_legible(happening.text), tone=tone)]


# How it fits


def _legible(text: str) -> str:
    """But for what would steer the terminal."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def _short(lanes: str) -> str:
    return lanes if len(lanes) <= _LANES else f"{lanes[: _LANES - 3]}..."


def _column(texts: Sequence[str]) -> list[str]:
    return [text.ljust(max(map(len, texts))) for text in texts]


def _cut(pieces: Sequence[Piece], width: int) -> list[Piece]:
    kept: list[Piece] = []
    used = 0
    for piece in pieces:
        size = cell_len(piece.text)
        if used + size <= width:
            kept.append(piece)
            used += size
            continue
        dots = min(3, width - used)
        text = set_cell_size(piece.text, width - used - dots) + "." * dots
        kept.append(msgspec.structs.replace(piece, text=text))
        break
    return kept


def _paint(pieces: Sequence[Piece], is_coloured: bool) -> Row:
    cells = sum(cell_len(piece.text) for piece in pieces)
    if not is_coloured:
        return Row(text="".join(piece.text for piece in pieces), cells=cells)
    text = "".join(f"\x1b[{_SGR[piece.tone]}m{piece.text}\x1b[0m" if _SGR[piece.tone] else piece.text for piece in pieces)
    return Row(text=text, cells=cells)
