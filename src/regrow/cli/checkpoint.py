"""`regrow checkpoint`: what lies in a store, whether it is whole, and how it gets out of there or is removed."""

import functools
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import msgspec

from regrow.cli.conclusion import INFRA, USAGE
from regrow.cli.gauge import Gauge, size
from regrow.core.checkpoint import Manifest, Pointer
from regrow.core.errors import ConfigError, InfraError, RegrowError, StateError
from regrow.core.retention import Retention
from regrow.core.skeleton import tensors
from regrow.state.archive import Archive
from regrow.state.stores import open_store

FINE, DAMAGED = 0, 1
_FORMAT = 1
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_LINES = 8


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint. docs/checkpoints.md explains each field; fields are only ever added within one format."""

    number: int
    step: int
    term: int
    folder: str
    size_bytes: int
    state: str
    """whole (as far as it was read), damaged, or newer: it takes a newer release to read it."""
    problems: tuple[str, ...] = ()
    made_unix_s: float | None = None
    regrow: str | None = None
    shards: int | None = None
    tensors: int | None = None
    root: str | None = None
    mathematics: dict[str, str] | None = None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What `list`, `show` and `verify` print with --json."""

    format: int = _FORMAT
    url: str
    checkpoints: tuple[Row, ...]
    """Newest first."""
    damages: tuple[str, ...]
    """Of pointers that cannot be read."""


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


_url = click.argument("url")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
_step = click.option("--step", type=click.IntRange(min=0), metavar="N", help="Of this step. Default: the newest.")


@click.group("checkpoint")
def checkpoint() -> None:
    """Checkpoints in a folder or at an address such as s3://bucket/run1: list, check, export and remove them.

    \b
    Exit codes, of each of these commands:
      0    fine
      1    damage was found; what is whole was done nevertheless
      2    wrong usage, or there is no such checkpoint
      4    the store refused or cannot be reached
    """


@checkpoint.command("list")
@_url
@_json
@_door
def list_(url: str, as_json: bool) -> int:
    """The complete checkpoints at URL, newest first. Reads pointers and manifests, not the tensors: see verify."""
    archive, pointers, damages = _there(url)
    with ThreadPoolExecutor(_LINES, "regrow-list") as pool:
        rows = tuple(pool.map(lambda pointer: _row(archive, pointer), pointers))
    found = Listing(url=archive.store.url, checkpoints=rows, damages=tuple(damages))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        _print_rows(rows)
        _print_problems(found)
    return _code(found)


@checkpoint.command("show")
@_url
@_step
@click.option("--tensors", "every", is_flag=True, help="Every tensor, with its dtype, shape and shard.")
@_json
@_door
def show(url: str, step: int | None, every: bool, as_json: bool) -> int:
    """What is in one checkpoint. Reads its manifest, not the tensors."""
    archive, pointers, damages = _there(url)
    pointer = _chosen(archive, pointers, damages, step)
    row = _row(archive, pointer)
    found = Listing(url=archive.store.url, checkpoints=(row,), damages=tuple(damages))
    manifest = archive.manifest(pointer) if row.state == "whole" else None
    if as_json:
        extra = {"leaves": manifest.leaves} if manifest is not None and every else {}
        click.echo(msgspec.json.encode({**msgspec.to_builtins(found), **extra}).decode())
        return _code(found)
    if manifest is not None:
        _print_manifest(row, manifest, every)
    _print_problems(found)
    return _code(found)


@checkpoint.command("verify")
@_url
@_step
@_json
@_door
def verify(url: str, step: int | None, as_json: bool) -> int:
    """Read every byte of all checkpoints, or of one, and hold it to its digest."""
    archive, pointers, damages = _there(url)
    chosen = pointers if step is None else [_chosen(archive, pointers, damages, step)]
    rows = []
    with Gauge("reading", sum(pointer.size_bytes for pointer in chosen)) as gauge:
        for pointer in chosen:
            row = _row(archive, pointer)
            if row.state == "whole":
                problems = archive.verify(pointer, gauge.add)
                row = msgspec.structs.replace(row, state="damaged" if problems else "whole", problems=tuple(problems))
            rows.append(row)
    found = Listing(url=archive.store.url, checkpoints=tuple(rows), damages=tuple(damages))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        for row in rows:
            click.echo(f"step {row.step}: {row.state}, {size(row.size_bytes)}")
        _print_problems(found)
    return _code(found)


@checkpoint.command("export")
@_url
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
    url: str,
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
    places = [place for place in (to, dcp, safetensors) if place is not None]
    if len(places) != 1:
        raise ConfigError(f"{len(places)} of --to, --dcp and --safetensors were given: give one")
    if places[0].exists():
        raise ConfigError(f"{places[0]} exists: choose another place, or remove it")
    archive, pointers, damages = _there(url)
    candidates = pointers if step is None else [_chosen(archive, pointers, damages, step)]
    if not candidates:
        raise StateError("; ".join(damages))
    from regrow.state import export as exporting  # which imports torch

    for pointer in candidates:
        try:
            with Gauge("reading", pointer.size_bytes) as gauge:
                loaded = exporting.load(archive, pointer, gauge.add)
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
        exporting.to_safetensors(loaded, places[0], name)
    done = Exported(
        url=archive.store.url,
        step=pointer.step,
        folder=pointer.folder,
        path=str(places[0]),
        passed_over=tuple(damages),
    )
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
    else:
        click.echo(f"step {done.step} of {done.url} is in {done.path}")
        for damage in damages:
            click.echo(f"passed over: {damage}", err=True)
    return DAMAGED if damages else FINE


@checkpoint.command("prune")
@_url
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Keep the newest N.")
@click.option("--every", type=click.IntRange(min=1), metavar="M", help="Keep those of a step that M divides.")
@click.option("--within", metavar="SIZE", help="Of what is kept, only the newest within SIZE, e.g. 500GB.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only say what would be removed.")
@_json
@_door
def prune(url: str, last: int | None, every: int | None, within: str | None, is_dry: bool, as_json: bool) -> int:
    """Remove what --last and --every do not ask for, what --within has no room for, and what dead saves left.

    The newest checkpoint is always kept, and nothing is removed in favour of one with files missing. Without any rule, only
    leftovers of saves go. Safe while a job saves there.
    """
    retention = Retention(last=last, every=every, total_bytes=_bytes(within) if within is not None else None)
    archive, pointers, damages = _there(url)
    gone = archive.doomed(retention) if is_dry else archive.prune(retention)
    leftovers = archive.leftovers() if is_dry else archive.sweep()
    rows = tuple(_plain_row(pointer, "whole") for pointer in gone)
    done = Removed(url=archive.store.url, is_dry=is_dry, checkpoints=rows, leftovers=leftovers, damages=tuple(damages))
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
    else:
        would = "would be removed" if is_dry else "removed"
        for row in rows:
            click.echo(f"{would}: step {row.step}, {size(row.size_bytes)}")
        for folder in leftovers:
            click.echo(f"{would}: {folder}, which was never completed")
        click.echo(f"kept: {len(pointers) - len(rows)}")
        for damage in damages:
            click.echo(f"damage: {damage}", err=True)
    return DAMAGED if damages else FINE


# What is there


def _there(url: str) -> tuple[Archive, list[Pointer], list[str]]:
    archive = Archive(open_store(url))
    pointers, damages = archive.pointers()
    if not pointers and not damages:
        raise ConfigError(f"there is no checkpoint at {archive.store.url}: look at the address")
    return archive, pointers, damages


def _chosen(archive: Archive, pointers: list[Pointer], damages: list[str], step: int | None) -> Pointer:
    """The newest of that step."""
    found = next((pointer for pointer in pointers if step in (None, pointer.step)), None)
    if found is not None:
        return found
    if not pointers:
        raise StateError("; ".join(damages))
    steps = ", ".join(str(pointer.step) for pointer in pointers[:10]) + (", ..." if len(pointers) > 10 else "")
    raise ConfigError(f"there is no checkpoint of step {step} at {archive.store.url}, there are those of {steps}")


def _row(archive: Archive, pointer: Pointer) -> Row:
    try:
        manifest = archive.manifest(pointer)
    except StateError as error:
        return _plain_row(pointer, "damaged", str(error))
    except ConfigError as error:
        return _plain_row(pointer, "newer", str(error))
    return msgspec.structs.replace(
        _plain_row(pointer, "whole"),
        made_unix_s=manifest.made_unix_s,
        regrow=manifest.regrow,
        shards=len(manifest.shards),
        tensors=len(manifest.leaves),
        root=manifest.root,
        mathematics=manifest.mathematics,
    )


def _plain_row(pointer: Pointer, state: str, *problems: str) -> Row:
    return Row(
        number=pointer.number,
        step=pointer.step,
        term=pointer.term,
        folder=pointer.folder,
        size_bytes=pointer.size_bytes,
        state=state,
        problems=problems,
    )


def _code(found: Listing) -> int:
    return DAMAGED if found.damages or any(row.state == "damaged" for row in found.checkpoints) else FINE


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"--within {text}: write a number of bytes, or for example 800MB, 500GB or 2TB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


# For people


def _print_rows(rows: tuple[Row, ...]) -> None:
    titles = ("step", "term", "made", "size", "state")
    cells = [titles, *((str(r.step), str(r.term), _when(r.made_unix_s), size(r.size_bytes), r.state) for r in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_manifest(row: Row, manifest: Manifest, every: bool) -> None:
    click.echo(f"step {row.step}, term {row.term}: {row.folder}")
    click.echo(f"made {_when(row.made_unix_s)} by regrow {row.regrow}")
    click.echo(f"tensors {len(manifest.leaves)}, shards {len(manifest.shards)}, {size(row.size_bytes)}")
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
    for damage in (*found.damages, *(problem for row in found.checkpoints for problem in row.problems)):
        click.echo(f"damage: {damage}" if "install regrow" not in damage else f"note: {damage}", err=True)


def _when(unix_s: float | None) -> str:
    return "-" if unix_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
