"""What `regrow run` is told of saves: how often, to where, what is kept of them, and whether the job begins from one.

Only said and checked here. The launcher starts a vault with it, and nobody is asked yet whether a place can be reached: the
vault does that before training begins.
"""

import functools
import os
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import click
import msgspec

from regrow.cli.address import parse_address
from regrow.cli.amounts import seconds, share, steps
from regrow.cli.neighbour import read_token
from regrow.core.errors import ConfigError
from regrow.core.interval import CadenceConfig
from regrow.core.neighbour import PATIENCE_S
from regrow.core.pace import refusal
from regrow.core.retention import Retention
from regrow.shell.vaulting import Place
from regrow.state.chain import need_packages
from regrow.state.neighbour_store import TOKEN, Address, address_of
from regrow.state.stores import open_store

_LOG_MB = 1024
_NAME = "job"
_GB, _MB = 10**9, 10**6


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """Who keeps a copy of the newest base and of the logs on another host."""

    address: Address
    token: str
    patience_s: float


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    places: tuple[Place, ...] = ()
    """Nearest first."""
    memory_every: int = 0
    """In steps; 0: a state is taken into memory only on its way to a place, or on auto."""
    paces_memory: bool = False
    """The copy in memory is on auto."""
    cadence: CadenceConfig = CadenceConfig()
    log_bytes: int = 0
    """Of the logs of an every-step job; 0: it is none."""
    neighbour: Neighbour | None = None
    shard_bytes: int = 256 * _MB
    patience_s: float = 120.0
    resumes: bool = False
    resume_step: int | None = None
    """None: the newest."""
    new_mathematics: bool = False

    @property
    def keeps(self) -> bool:
        """Does the state outlive the replicas?"""
        return bool(self.places or self.memory_every or self.paces_memory or self.log_bytes)


_DEFAULT = Keeping()

_OPTIONS = (
    click.option(
        "--checkpoint",
        "urls",
        multiple=True,
        metavar="URL",
        help="Save checkpoints there: a folder, or for example s3://bucket/run1. Several, nearest first.",
    ),
    click.option(
        "--host-local",
        "local",
        multiple=True,
        metavar="URL",
        help="This --checkpoint goes with the machine: the last one to save to when that is to be taken away.",
    ),
    click.option(
        "--checkpoint-every",
        "intervals",
        type=steps,
        multiple=True,
        metavar="auto|N",
        help="So many steps from one to the next, or as --overhead and --mtbf ask. Once: for all; else one for each "
        "--checkpoint. Default: auto.",
    ),
    click.option(
        "--memory-every",
        type=steps,
        metavar="auto|N",
        help="A copy in this host's memory every N steps, or on auto, which outlives all replicas. Default: auto where a "
        "--checkpoint is; else only on the way to one.",
    ),
    click.option(
        "--overhead",
        metavar="SHARE",
        help=f"Saves on auto are to cost training no more than this. Default: {_DEFAULT.cadence.overhead * 100:g}%.",
    ),
    click.option(
        "--mtbf",
        metavar="TIME",
        help="The mean time between losses of all replicas, e.g. 3h, for saves on auto. Default: by what is seen.",
    ),
    click.option(
        "--every-step",
        is_flag=True,
        help="Log each committed step in this host's memory: with all replicas lost, none of them is computed again.",
    ),
    click.option(
        "--log-mb",
        type=click.IntRange(min=1),
        metavar="MB",
        help=f"Memory for these logs; half of it full, a newer copy of the state is made. Default: {_LOG_MB}.",
    ),
    click.option(
        "--neighbour",
        metavar="HOST:PORT[/NAME]",
        help="`regrow neighbour` on another host keeps each copy of the state, and these logs, in its memory: this host "
        f"may be lost as well. NAME is the run's there, also when it is resumed elsewhere. Default: {_NAME}.",
    ),
    click.option(
        "--neighbour-token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Its token. Default: {TOKEN}.",
    ),
    click.option(
        "--neighbour-patience",
        type=click.FloatRange(min=0, min_open=True),
        default=PATIENCE_S,
        show_default=True,
        metavar="SECONDS",
        help="A step waits no longer for a neighbour, and training goes on without it.",
    ),
    click.option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Remove all but the newest N checkpoints."),
    click.option(
        "--keep-every", type=click.IntRange(min=1), metavar="N", help="Keep those of a step that N divides, besides."
    ),
    click.option(
        "--keep-gb",
        type=click.FloatRange(min=0, min_open=True),
        metavar="GB",
        help="Of what is kept, only the newest within so much. The newest one always is.",
    ),
    click.option(
        "--checkpoint-delta",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="At most N checkpoints in a row hold only what has changed, where that is measured to be a gain. 0: none.",
    ),
    click.option(
        "--moments",
        hidden=True,
        help="Refused: what is saved here is exact.",
    ),
    click.option(
        "--shard-mb",
        type=click.IntRange(min=1),
        default=_DEFAULT.shard_bytes // _MB,
        show_default=True,
        metavar="MB",
        help="A checkpoint's tensors lie in files of about this size.",
    ),
    click.option(
        "--checkpoint-patience",
        type=click.FloatRange(min=0, min_open=True),
        default=_DEFAULT.patience_s,
        show_default=True,
        metavar="SECONDS",
        help="A place gives a save up when nothing of it was written there for so long. Training goes on.",
    ),
    click.option(
        "--checkpoint-mb-per-s",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="MB",
        help="Each place is written to no faster than so many MB a second; 0: as fast as it goes.",
    ),
    click.option(
        "--resume",
        metavar="latest|STEP",
        help="Begin from the newest state at --checkpoint (from step 0 where there is none), or from that of STEP.",
    ),
    click.option(
        "--new-mathematics",
        is_flag=True,
        help="Resume also what was saved with another seed, other lanes or another batch size: it is another job then.",
    ),
)


def keeping_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command gets them as one function that checks them: `keeping()`, which may raise ConfigError."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        own = {name: arguments.pop(name) for name in signature(keep).parameters}
        command(keeping=lambda: keep(**own), **arguments)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


def keep(
    *,
    urls: Sequence[str],
    local: Sequence[str],
    intervals: Sequence[int],
    memory_every: int | None,
    overhead: str | None,
    mtbf: str | None,
    every_step: bool,
    log_mb: int | None,
    neighbour: str | None,
    neighbour_token_file: Path | None,
    neighbour_patience: float,
    keep_last: int | None,
    keep_every: int | None,
    keep_gb: float | None,
    checkpoint_delta: int,
    moments: str | None,
    shard_mb: int,
    checkpoint_patience: float,
    checkpoint_mb_per_s: int,
    resume: str | None,
    new_mathematics: bool,
) -> Keeping:
    retention = Retention(
        last=keep_last, every=keep_every, total_bytes=None if keep_gb is None else max(1, int(keep_gb * _GB))
    )
    if moments is not None:
        raise ConfigError(
            f"--moments {moments}: a job's checkpoints are exact, so that it ends with the same bits; only a "
            "regrow.checkpoint.Checkpointer in a loop of your own may save moments that are not"
        )
    near = _neighbour(neighbour, neighbour_token_file, neighbour_patience)
    _check(urls, intervals, retention, checkpoint_delta, resume if near is None else None, new_mathematics and near is None)
    if (why := refusal(checkpoint_mb_per_s, checkpoint_patience)) is not None:
        raise ConfigError(f"--checkpoint-mb-per-s with --checkpoint-patience: {why}")
    if checkpoint_delta:
        need_packages(f"--checkpoint-delta {checkpoint_delta}")
    lost = {open_store(url).url for url in local}
    if log_mb is not None and not every_step:
        raise ConfigError("--log-mb without --every-step: say that each committed step is to be logged with --every-step")
    places: list[Place] = []
    for number, url in enumerate(urls):
        every = intervals[number if len(intervals) > 1 else 0] if intervals else 0
        found = open_store(url).url
        place = Place(
            url=found,
            every=every,
            retention=retention,
            delta=checkpoint_delta,
            outlives=found not in lost,
            bytes_per_s=checkpoint_mb_per_s * _MB,
        )
        if place.url in (other.url for other in places):
            raise ConfigError(f"--checkpoint {url} is given twice: one place takes each save once")
        places.append(place)
    if strange := lost - {place.url for place in places}:
        raise ConfigError(f"--host-local {min(strange)} is no --checkpoint: name one of those")
    paces_memory = memory_every == 0 or (memory_every is None and any(not place.every for place in places))
    if near is not None:
        paces_memory |= memory_every is None and not places and not every_step
        places.insert(0, Place(url=near.address.url, every=0, retention=Retention(last=1)))
    if not paces_memory and all(place.every for place in places):
        for flag, given in (("--overhead", overhead), ("--mtbf", mtbf)):
            if given is not None:
                raise ConfigError(
                    f"{flag} where no save is on auto: leave it out, or give --checkpoint-every auto or --memory-every auto"
                )
    return Keeping(
        places=tuple(places),
        memory_every=memory_every or 0,
        paces_memory=paces_memory,
        cadence=CadenceConfig(
            overhead=_DEFAULT.cadence.overhead if overhead is None else share("--overhead", overhead),
            mtbf_s=None if mtbf is None else seconds("--mtbf", mtbf),
        ),
        neighbour=near,
        log_bytes=(log_mb or _LOG_MB) * _MB if every_step else 0,
        shard_bytes=shard_mb * _MB,
        patience_s=checkpoint_patience,
        resumes=resume is not None,
        resume_step=_step(resume),
        new_mathematics=new_mathematics,
    )


def _neighbour(text: str | None, token_file: Path | None, patience_s: float) -> Neighbour | None:
    if text is None:
        if token_file is not None:
            raise ConfigError("--neighbour-token-file without --neighbour: say where it is with --neighbour HOST:PORT")
        return None
    where, _, name = text.partition("/")
    endpoint = parse_address("--neighbour", where)
    token = read_token("--neighbour-token-file", token_file) if token_file is not None else os.environ.get(TOKEN, "").strip()
    if not token:
        raise ConfigError(f"--neighbour {text} has a door: give its token with --neighbour-token-file, or set {TOKEN}")
    return Neighbour(address=address_of(f"{endpoint}/{name or _NAME}"), token=token, patience_s=patience_s)


def _check(
    urls: Sequence[str],
    intervals: Sequence[int],
    retention: Retention,
    delta: int,
    resume: str | None,
    new_mathematics: bool,
) -> None:
    if not urls:
        given = {
            "--checkpoint-every": bool(intervals),
            "--keep-last": retention.last is not None,
            "--keep-every": retention.every is not None,
            "--keep-gb": retention.total_bytes is not None,
            "--checkpoint-delta": bool(delta),
            "--resume": resume is not None,
        }
        for flag, is_given in given.items():
            if is_given:
                raise ConfigError(f"{flag} without --checkpoint: say where checkpoints lie with --checkpoint URL")
    if len(intervals) not in (0, 1, len(urls)):
        raise ConfigError(
            f"--checkpoint-every is given {len(intervals)} times for {len(urls)} places: give it once for all, or once "
            "for each --checkpoint, in the same order"
        )
    if new_mathematics and resume is None:
        raise ConfigError("--new-mathematics without --resume: say what to begin from with --resume latest or --resume STEP")


def _step(resume: str | None) -> int | None:
    if resume in (None, "latest"):
        return None
    if not resume.isascii() or not resume.isdigit() or int(resume) < 1:
        raise ConfigError(f"--resume {resume}: write latest, or the step of a checkpoint (`regrow checkpoint list URL`)")
    return int(resume)
