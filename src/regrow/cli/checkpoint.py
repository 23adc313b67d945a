"""`regrow checkpoint`: what lies in a store, whether it is whole, and how it gets out of there or is removed."""

import functools
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import msgspec

from regrow.cli.advise import advise_
from regrow.cli.asked_save import now
from regrow.cli.conclusion import INFRA, USAGE
from regrow.cli.gauge import Gauge, size
from regrow.cli.stored import Found, Row, Stored, look, plain_row, read_row
from regrow.core.checkpoint import Manifest
from regrow.core.errors import ConfigError, InfraError, RegrowError, StateError
from regrow.core.inexact import Inexact
from regrow.core.retention import Retention
from regrow.core.skeleton import tensors

FINE, DAMAGED = 0, 1
_FORMAT = 1
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_LINES = 8


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What `list`, `show` and `verify` print with --json."""

    format: int = _FORMAT
    url: str
    checkpoints: tuple[Row, ...]
    """Newest first."""
    damages: tuple[str, ...]
    """Of pointers that cannot be read."""
    unreachable: str = ""
    """Why nobody could look, of a place of a run."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What `export` prints with --json."""

    format: int = _FORMAT
    url: str
    step: int
    folder: str
    path: str
    passed_over: tuple[str, ...]
    """What is wrong with the newer ones."""


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What `prune` prints with --json."""

    format: int = _FORMAT
    url: str
    is_dry: bool
    checkpoints: tuple[Row, ...]
    leftovers: tuple[str, ...]
    """Folders of saves that were never completed."""
    damages: tuple[str, ...]
    unreachable: str = ""


class OfRun(msgspec.Struct, frozen=True, kw_only=True):
    """What `list`, `verify` and `prune` print with --json of a run directory."""

    format: int = _FORMAT
    run: str
    places: tuple[Listing | Removed, ...]
    """Nearest first."""


def _door(command: Callable[..., int]) -> Callable[..., None]:
    """Ends with the exit code that the command returns, or that an error stands for."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        try:
            sys.exit(command(**arguments))
        except RegrowError as error:
            click.echo(f"regrow: {error}", err=True)
            codes = [(ConfigError, USAGE), (StateError, DAMAGED), (InfraError, INFRA)]
            sys.exit(next((code for kind, code in codes if isinstance(error, kind)), INFRA))

    return run


_where = click.argument("where", metavar="URL|RUN_DIR")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
_step = click.option("--step", type=click.IntRange(min=0), metavar="N", help="Of this step. Default: the newest.")


@click.group("checkpoint")
def checkpoint() -> None:
    """Checkpoints: list, check, export and remove them, have a running job save one now, or compute when to save.

    They lie in a folder, or at an address such as s3://bucket/run1. Name a run directory instead, and list, verify and prune
    go through all places of that job, while show and export choose the newest from the nearest place that has it.

    \b
    Exit codes, of each of these commands:
      0    fine
      1    damage was found; what is whole was done nevertheless
      2    wrong usage, or there is no such checkpoint
      4    the store refused or cannot be reached; of a run, what the other places hold was done nevertheless
    """


checkpoint.add_command(now)
checkpoint.add_command(advise_)


@checkpoint.command("list")
@_where
@_json
@_door
def list_(where: str, as_json: bool) -> int:
    """The complete checkpoints there, newest first. Reads pointers and manifests, not the tensors: see verify."""
    found = look(where)
    with ThreadPoolExecutor(_LINES, "regrow-list") as pool:
        listings = [
            _listing(place, pool.map(functools.partial(read_row, place.archive), place.pointers)) for place in found.places
        ]
    if as_json:
        _print_json(found, listings)
    else:
        for listing in listings:
            if found.run is not None:
                click.echo(f"{listing.url}:")
            if listing.checkpoints or found.run is None:
                _print_rows(listing.checkpoints)
            elif not listing.unreachable:
                click.echo("no checkpoint yet")
            _print_problems(listing)
    return _code(listings)


@checkpoint.command("show")
@_where
@_step
@click.option("--tensors", "every", is_flag=True, help="Every tensor, with its dtype, shape and shard.")
@_json
@_door
def show(where: str, step: int | None, every: bool, as_json: bool) -> int:
    """What is in one checkpoint. Reads its manifest, not the tensors."""
    found = look(where)
    place, pointer = found.newest(step)[0]
    told = read_row(place.archive, pointer)
    listing = _listing(place, [told])
    manifest = place.archive.manifest(pointer) if told.state == "whole" else None
    if as_json:
        extra = {"leaves": manifest.leaves} if manifest is not None and every else {}
        click.echo(msgspec.json.encode({**msgspec.to_builtins(listing), **extra}).decode())
    else:
        if found.run is not None:
            click.echo(f"{place.url}:")
        if manifest is not None:
            _print_manifest(told, manifest, every)
        _print_problems(listing)
    return _code([listing, *_others(found, place)])


@checkpoint.command("verify")
@_where
@_step
@_json
@_door
def verify(where: str, step: int | None, as_json: bool) -> int:
    """Read every byte of all checkpoints, or of one, and hold it to its digest."""
    found = look(where)
    if step is None:
        chosen = [(place, pointer) for place in found.places for pointer in place.pointers]
    else:
        chosen = found.newest(step)
    rows: dict[str, list[Row]] = {place.url: [] for place in found.places}
    with Gauge("reading", sum(pointer.size_bytes for _, pointer in chosen)) as gauge:
        for place, pointer in chosen:
            told = read_row(place.archive, pointer)
            if told.state == "whole":
                problems = place.archive.verify(pointer, gauge.add)
                told = msgspec.structs.replace(told, state="damaged" if problems else "whole", problems=tuple(problems))
            rows[place.url].append(told)
    listings = [_listing(place, rows[place.url]) for place in found.places]
    if as_json:
        _print_json(found, listings)
    else:
        for listing in listings:
            for told in listing.checkpoints:
                at = f" at {listing.url}" if found.run is not None else ""
                click.echo(f"step {told.step}{at}: {told.state}, {size(told.size_bytes)}")
            _print_problems(listing)
    return _code(listings)


@checkpoint.command("export")
@_where
@_step
@click.option("--to", type=click.Path(path_type=Path), metavar="FILE.pt", help="One file, for torch.load.")
@click.option("--dcp", type=click.Path(path_type=Path), metavar="DIR", help="A folder, for torch.distributed.checkpoint.")
@click.option(
    "--safetensors", type=click.Path(path_type=Path), metavar="FILE", help="The model's tensors alone, under its own names."
)
@click.option("--object", "name", metavar="NAME", help="Which saved object is the model, for --safetensors.")
@_json
@_door
def export(
    where: str,
    step: int | None,
    to: Path | None,
    dcp: Path | None,
    safetensors: Path | None,
    name: str | None,
    as_json: bool,
) -> int:
    """Write one checkpoint as something that opens without Regrow. Give one of --to, --dcp and --safetensors.

    Without --step it is the newest that is whole: every byte is checked, and damaged ones are passed over and told. Nothing
    that exists is replaced. Needs memory for all of it.
    """
    paths = [path for path in (to, dcp, safetensors) if path is not None]
    if len(paths) != 1:
        raise ConfigError(f"{len(paths)} of --to, --dcp and --safetensors were given: give one")
    if paths[0].exists():
        raise ConfigError(f"{paths[0]} exists: choose another place, or remove it")
    found = look(where)
    candidates = found.newest(step)
    damages = [damage for place in found.places for damage in place.damages]
    from regrow.state import export as exporting  # which imports torch

    for place, pointer in candidates:
        try:
            with Gauge("reading", pointer.size_bytes) as gauge:
                loaded = exporting.load(place.archive, pointer, gauge.add)
            break
        except StateError as error:
            damages.append(str(error))
    else:
        raise StateError(f"no checkpoint is whole: {'; '.join(damages)}")
    if to is not None:
        exporting.to_torch_file(loaded, to)
    elif dcp is not None:
        exporting.to_dcp(loaded, dcp)
    else:
        exporting.to_safetensors(loaded, paths[0], name)
    done = Exported(
        url=place.url,
        step=pointer.step,
        folder=pointer.folder,
        path=str(paths[0]),
        passed_over=(*damages, *(other.unreachable for other in found.places if other.unreachable)),
    )
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
    else:
        click.echo(f"step {done.step} of {done.url} is in {done.path}")
        for problem in done.passed_over:
            click.echo(f"passed over: {problem}", err=True)
    return max(DAMAGED if damages else FINE, _code(_others(found, place)))


@checkpoint.command("prune")
@_where
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Keep the newest N.")
@click.option("--every", type=click.IntRange(min=1), metavar="M", help="Keep those of a step that M divides.")
@click.option("--within", metavar="SIZE", help="Of what is kept, only the newest within SIZE, e.g. 500GB.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only say what would be removed.")
@_json
@_door
def prune(where: str, last: int | None, every: int | None, within: str | None, is_dry: bool, as_json: bool) -> int:
    """Remove what --last and --every do not ask for, what --within has no room for, and what dead saves left.

    The newest checkpoint is always kept, and so is what a kept delta is built on; nothing is removed in favour of one with
    files missing. Without any rule, only leftovers of saves go. Safe while a job saves there.
    """
    retention = Retention(last=last, every=every, total_bytes=_bytes(within) if within is not None else None)
    found = look(where)
    done = [_pruned(place, retention, is_dry) for place in found.places]
    if as_json:
        _print_json(found, done)
    else:
        for place, removed in zip(found.places, done, strict=True):
            _print_removed(removed, f" at {place.url}" if found.run is not None else "", len(place.pointers))
    return _code(done)


def _pruned(place: Stored, retention: Retention, is_dry: bool) -> Removed:
    if place.unreachable:
        return Removed(url=place.url, is_dry=is_dry, checkpoints=(), leftovers=(), damages=(), unreachable=place.unreachable)
    archive = place.archive
    gone = archive.doomed(retention) if is_dry else archive.prune(retention)
    leftovers = archive.leftovers() if is_dry else archive.sweep()
    rows = tuple(plain_row(pointer, "whole") for pointer in gone)
    return Removed(url=place.url, is_dry=is_dry, checkpoints=rows, leftovers=leftovers, damages=tuple(place.damages))


def _listing(place: Stored, rows: Iterable[Row]) -> Listing:
    return Listing(url=place.url, checkpoints=tuple(rows), damages=tuple(place.damages), unreachable=place.unreachable)


def _others(found: Found, chosen: Stored) -> list[Listing]:
    """Places that nobody could look at while another one was chosen."""
    return [_listing(place, ()) for place in found.places if place is not chosen and place.unreachable]


def _code(listings: Iterable[Listing | Removed]) -> int:
    told = list(listings)
    if any(listing.unreachable for listing in told):
        return INFRA
    rows = [told for listing in told for told in listing.checkpoints]
    return DAMAGED if any(x.damages for x in told) or any(x.state == "damaged" for x in rows) else FINE


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"--within {text}: write a number of bytes, or for example 800MB, 500GB or 2TB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


# What is printed


def _print_json(found: Found, told: Sequence[Listing | Removed]) -> None:
    """Of a URL the one, of a run all of its places."""
    whole = told[0] if found.run is None else OfRun(run=found.run, places=tuple(told))
    click.echo(msgspec.json.encode(whole).decode())


def _print_removed(done: Removed, at: str, before: int) -> None:
    if done.unreachable:
        click.echo(f"cannot be reached: {done.unreachable}", err=True)
        return
    would = "would be removed" if done.is_dry else "removed"
    for told in done.checkpoints:
        click.echo(f"{would}: step {told.step}{at}, {size(told.size_bytes)}")
    for folder in done.leftovers:
        click.echo(f"{would}: {folder}{at}, which was never completed")
    click.echo(f"kept{at}: {before - len(done.checkpoints)}")
    for damage in done.damages:
        click.echo(f"damage: {damage}", err=True)


def _print_rows(rows: tuple[Row, ...]) -> None:
    titles = ("step", "term", "made", "size", "state")
    cells = [titles, *((str(r.step), str(r.term), _when(r.made_unix_s), size(r.size_bytes), r.state) for r in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for told, row in zip((None, *rows), cells, strict=True):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        if told is not None and told.base is not None:
            line += f", delta {told.depth} on {told.base}"
        if told is not None and told.moments is not None:
            line += f", not exact: moments {told.moments}"
        click.echo(line)


def _print_manifest(row: Row, manifest: Manifest, every: bool) -> None:
    click.echo(f"step {row.step}, term {row.term}: {row.folder}")
    click.echo(f"made {_when(row.made_unix_s)} by regrow {row.regrow}")
    click.echo(f"tensors {len(manifest.leaves)}, shards {len(manifest.shards)}, {size(row.size_bytes)}")
    if row.base is not None:
        click.echo(f"delta {row.depth}, {row.ratio:.2f} times smaller than it would be whole, on {row.base}")
    if isinstance(manifest.inexact, Inexact):
        click.echo(f"not exact, {row.ratio:.2f} times smaller than it would be: moments {row.moments}")
        for error in manifest.inexact.errors:
            click.echo(
                f"{error.kind}: off by {100 * error.rms_relative:.2g} % (rms), by {error.largest:.2g} at most; "
                f"{100 * error.zeroed:.2g} % became zero"
            )
    click.echo(f"root {row.root}")
    for name, value in sorted(manifest.mathematics.items()):
        click.echo(f"mathematics: {name} = {value}")
    objects: dict[str, list[int]] = {}
    for path, index, _, _ in tensors(manifest.skeleton):
        objects.setdefault(str(path[0][1]) if path else "state", []).append(manifest.leaves[index].size_bytes)
    for name, sizes in objects.items():
        click.echo(f"{name}: tensors {len(sizes)}, {size(sum(sizes))}")
    for leaf in manifest.leaves if every else ():
        click.echo(f"  {leaf.name}  {leaf.dtype}{list(leaf.shape)}  {manifest.shards[leaf.shard].file}")


def _print_problems(found: Listing) -> None:
    if found.unreachable:
        click.echo(f"cannot be reached: {found.unreachable}", err=True)
    for damage in (*found.damages, *(problem for row in found.checkpoints for problem in row.problems)):
        click.echo(f"damage: {damage}" if "install regrow" not in damage else f"note: {damage}", err=True)


def _when(unix_s: float | None) -> str:
    return "-" if unix_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
