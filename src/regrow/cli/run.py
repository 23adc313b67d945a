"""`regrow run`: checks what was asked for, runs the job, and turns its end into an exit code."""

import asyncio
import math
import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import click

from regrow.agent.terminal import Terminal
from regrow.cli.address import parse_address
from regrow.cli.conclusion import INFRA, USAGE
from regrow.cli.keeping import Keeping, keeping_options
from regrow.cli.launcher import Launcher, Plan
from regrow.cli.noticing import notice_options
from regrow.cli.run_dir import default_path
from regrow.coordinator.notices import idle
from regrow.core.budget import BudgetConfig
from regrow.core.errors import ConfigError, InfraError, RegrowError
from regrow.core.hangs import HangConfig
from regrow.core.membership_config import MembershipConfig
from regrow.core.notices import NoticeConfig
from regrow.core.speeds import SpeedConfig
from regrow.shell.faultpoint import parse

_BUDGET = BudgetConfig()
_HANGS = HangConfig()
_MEMBERSHIP = MembershipConfig(replicas=())


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="--replicas N [OPTIONS]",
)
@click.option("--replicas", type=int, required=True, metavar="N", help="How many copies of the model train together.")
@click.option("--lanes", type=int, metavar="L", help="Lanes of a step; the script may say instead. Default: 8.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="A new folder for this run. Default: runs/<time>-<random>.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address on which the job's processes listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The coordinator's port. Default: any free one.")
@click.option(
    "--min-replicas",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="M",
    help="The job waits while fewer replicas than this work, and ends once fewer may still be restarted.",
)
@click.option(
    "--max-replicas",
    type=click.IntRange(min=1),
    metavar="M",
    help="`regrow scale` makes no more than this work. Default: no limit.",
)
@click.option(
    "--spares",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Replicas beyond those that work: parked with their model built, until one of them takes over.",
)
@click.option("--shadow", is_flag=True, help="Spares stay in step with the others: taking over is a matter of lanes alone.")
@click.option(
    "--coordinator",
    metavar="HOST:PORT",
    help="Where `regrow coordinator` listens; --run-dir is then its run directory. Default: one inside this process.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="That coordinator's token, when its run directory is not at hand; or set REGROW_TOKEN.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=_BUDGET.max_restarts,
    show_default=True,
    help="Restarts of one replica within the window; then the job goes on without it.",
)
@click.option(
    "--max-all-restarts",
    type=click.IntRange(min=0),
    default=_BUDGET.max_all_restarts,
    show_default=True,
    help="Restarts of all replicas together within the window.",
)
@click.option(
    "--max-job-restarts",
    type=click.IntRange(min=0),
    default=_MEMBERSHIP.max_job_restarts,
    show_default=True,
    metavar="N",
    help="A job that saves is brought back after a loss of all replicas: so often in a row without getting further.",
)
@click.option(
    "--restart-window",
    type=click.FloatRange(min=0, min_open=True),
    default=_BUDGET.window_s,
    show_default=True,
    metavar="SECONDS",
    help="The window in which restarts are counted.",
)
@click.option(
    "--restart-backoff",
    type=click.FloatRange(min=0),
    default=_BUDGET.backoff_s,
    show_default=True,
    metavar="SECONDS",
    help="Wait before a replica's second restart within the window; it doubles with each further one.",
)
@click.option(
    "--lease",
    type=click.FloatRange(min=3),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Silence after which a replica is replaced: at least three of its heartbeats, which come every second.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a worker that is told to end (SIGTERM) may take to hand over, and a job that is to stop.",
)
@click.option(
    "--startup-timeout",
    type=click.FloatRange(min=0),
    default=_HANGS.startup_s,
    show_default=True,
    metavar="SECONDS",
    help="How long a replica's script may take to its first step before it is restarted. 0: for ever.",
)
@click.option(
    "--hang-factor",
    type=click.FloatRange(min=0),
    default=_HANGS.factor,
    show_default=True,
    metavar="X",
    help="A replica hangs when its microbatch takes X times the longest recent one. 0: nobody is judged to hang.",
)
@click.option(
    "--hang-floor",
    type=click.FloatRange(min=0.2),
    default=_HANGS.floor_s,
    show_default=True,
    metavar="SECONDS",
    help="No replica hangs before it was silent for so long.",
)
@click.option(
    "--hang-first",
    type=click.FloatRange(min=0),
    default=_HANGS.first_s,
    show_default=True,
    metavar="SECONDS",
    help="The limit where nothing is learned: a first microbatch, a compilation, work between the loops. 0: none.",
)
@click.option(
    "--speed",
    "speeds",
    multiple=True,
    metavar="NAME=X",
    help="This replica is X times as fast as the others, e.g. r1=0.5, and gets lanes accordingly. Default: measured.",
)
@click.option(
    "--on-loss",
    type=click.Choice(["redistribute", "shrink"]),
    default="redistribute",
    show_default=True,
    help="Lanes of a lost replica: computed by the others, or left out until it is back.",
)
@click.option(
    "--on-poison",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="A lane that kills its replicas: stop before its step, or go on without it.",
)
@click.option(
    "--poison-after",
    type=click.IntRange(min=2),
    default=2,
    show_default=True,
    metavar="N",
    help="So many different replicas dead in one lane of one step make it poison. One unexplained SIGKILL is not counted.",
)
@click.option(
    "--audit-every",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="Compare the whole state of all replicas every N steps, and a part of it at each. 0: never.",
)
@click.option(
    "--bucket-mb",
    type=click.FloatRange(min=0, min_open=True),
    default=8.0,
    show_default=True,
    metavar="MB",
    help="Gradients travel in buckets of at least so much, while the rest is still computed.",
)
@click.option(
    "--join-queue-mb",
    type=click.FloatRange(min=0),
    default=1024.0,
    show_default=True,
    metavar="MB",
    help="So much of what was committed may wait for a joiner. One that needs more cannot keep up: the others wait for it.",
)
@keeping_options
@notice_options
@click.option("--plain", is_flag=True, help="Lines only, also on a terminal. Default there: a live view below them.")
@click.option("--quiet", is_flag=True, help="Only failures, the end and the script's own output.")
@click.option("--fault", "faults", multiple=True, hidden=True, metavar="SPEC", help="Arm a fault point, for tests.")
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    replicas: int,
    lanes: int | None,
    run_dir: Path | None,
    host: str,
    port: int,
    min_replicas: int,
    max_replicas: int | None,
    spares: int,
    shadow: bool,
    coordinator: str | None,
    token_file: Path | None,
    max_restarts: int,
    max_all_restarts: int,
    max_job_restarts: int,
    restart_window: float,
    restart_backoff: float,
    lease: float,
    grace: float,
    startup_timeout: float,
    hang_factor: float,
    hang_floor: float,
    hang_first: float,
    speeds: tuple[str, ...],
    on_loss: Literal["redistribute", "shrink"],
    on_poison: Literal["stop", "skip"],
    poison_after: int,
    audit_every: int,
    bucket_mb: float,
    join_queue_mb: float,
    keeping: Callable[[], Keeping],
    noticing: Callable[[float], NoticeConfig],
    plain: bool,
    quiet: bool,
    faults: tuple[str, ...],
    script: Path,
    args: tuple[str, ...],
) -> None:
    """Train SCRIPT on N replicas and keep it going through failures.

    Everything after SCRIPT goes to the script. Its output appears here, each line with its replica's name in front, and
    is kept in the run directory. On a terminal a live view below it tells step, loss, rate, and what each replica is doing.
    The first Ctrl-C (or SIGTERM, or notice) stops at the end of the current step, the second signal at once.

    \b
    Exit codes, and whether a scheduler should start the same command again (with --resume latest):
      0    no   the job finished, or was finished already
      1    no   the job failed: the script raised, a lane is poison, too few replicas may be restarted, it was brought
                back again and again and came no further, or a replica died after its last step
      2    no   wrong usage: a flag, the script's path or the run directory
      3    no   every replica was lost, and the training state with them
      4    no   the machine refused: disk, port, processes; or the job's last state could not be made durable everywhere
      70   no   a bug in Regrow
      75   yes  interrupted by SIGTERM or a notice, and a state is durable from which the job goes on
      130  no   stopped by Ctrl-C
      143  no   interrupted by SIGTERM or a notice, and no state is safe: it would begin at its beginning
    """
    budget = BudgetConfig(
        max_restarts=max_restarts, max_all_restarts=max_all_restarts, window_s=restart_window, backoff_s=restart_backoff
    )
    terminal = Terminal(is_quiet=quiet)
    try:
        _check(replicas, min_replicas, max_replicas, lanes, script, faults, hang_factor)
        if shadow and not spares:
            raise ConfigError("--shadow without --spares: say how many with --spares N")
        if lanes is not None and (warning := idle(replicas, lanes)) is not None:
            terminal.say(warning)
        kept = keeping()
        token = _token(coordinator, token_file, port, run_dir)
        plan = Plan(
            script=script.absolute(),
            argv=args,
            run_dir=(run_dir or default_path(Path.cwd())).absolute(),
            coordinator=None if coordinator is None else parse_address("--coordinator", coordinator),
            token=token,
            host=host,
            port=port,
            lanes=lanes,
            membership=MembershipConfig(
                replicas=tuple(f"r{number}" for number in range(replicas)),
                lanes=lanes,
                lease_s=lease,
                budget=budget,
                min_replicas=min_replicas,
                max_replicas=max_replicas,
                spares=spares,
                shadow=shadow,
                speeds=SpeedConfig(fixed=dict(map(_speed, speeds))),
                on_loss=on_loss,
                on_poison=on_poison,
                poison_after=poison_after,
                keeps=kept.keeps,
                logs=kept.log_bytes > 0,
                max_job_restarts=max_job_restarts,
                resumes=kept.resumes,
                resume_step=kept.resume_step,
                new_mathematics=kept.new_mathematics,
                script=script.name,
            ),
            audit_every=audit_every,
            bucket_bytes=max(1, int(bucket_mb * 2**20)),
            join_queue_bytes=int(join_queue_mb * 2**20),
            places=kept.places,
            memory_every=kept.memory_every,
            paces_memory=kept.paces_memory,
            cadence=kept.cadence,
            log_bytes=kept.log_bytes,
            neighbour=kept.neighbour,
            shard_bytes=kept.shard_bytes,
            patience_s=kept.patience_s,
            grace_s=grace,
            notices=noticing(grace),
            faults=",".join(faults),
            hangs=HangConfig(factor=hang_factor, floor_s=hang_floor, first_s=hang_first, startup_s=startup_timeout),
            is_live=terminal.is_screen and os.environ.get("TERM", "dumb") != "dumb" and not (plain or quiet),
            is_coloured=not os.environ.get("NO_COLOR"),
        )
        code = asyncio.run(_launch(plan, terminal))
    except ConfigError as error:
        terminal.say(f"error: {error}")
        code = USAGE
    except (RegrowError, OSError) as error:
        terminal.say(f"error: {error}")
        code = INFRA
    terminal.close()
    sys.exit(code)


async def _launch(plan: Plan, terminal: Terminal) -> int:
    return await Launcher(plan, terminal).run()


def _speed(text: str) -> tuple[str, float]:
    name, _, speed = text.partition("=")
    try:
        if re.fullmatch(r"r\d+", name) and 0 < float(speed) < math.inf:
            return name, float(speed)
    except ValueError:
        pass
    raise ConfigError(f"--speed {text}: write NAME=X with a replica's name and a number above 0, e.g. r1=0.5")


def _token(coordinator: str | None, token_file: Path | None, port: int, run_dir: Path | None) -> str | None:
    """The token of a coordinator of its own, brought along; None when it lies in the run directory, or is to be made."""
    if coordinator is None:
        if token_file is not None:
            raise ConfigError("--token-file without --coordinator: a coordinator inside this process makes its own token")
        return None
    if port:
        raise ConfigError("--port with --coordinator: the port is the coordinator's own, given by its --listen")
    if token_file is not None:
        try:
            return token_file.read_text().strip()
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"--token-file {token_file} cannot be read ({error}): check the path") from error
    if run_dir is not None and (run_dir / "token").exists():
        return None
    if "REGROW_TOKEN" in os.environ:
        return os.environ["REGROW_TOKEN"].strip()
    if run_dir is None:
        raise ConfigError(
            "--coordinator without --run-dir: name the coordinator's run directory, or bring its token with --token-file "
            "or REGROW_TOKEN"
        )
    return None


def _check(
    replicas: int,
    min_replicas: int,
    max_replicas: int | None,
    lanes: int | None,
    script: Path,
    faults: tuple[str, ...],
    hang_factor: float,
) -> None:
    if platform.system() != "Linux":
        raise InfraError(
            f"regrow run needs Linux (pidfd, subreaper), this is {platform.system()}: "
            "run the script alone with python, as a job of one"
        )
    if replicas < 1:
        raise ConfigError(f"--replicas {replicas}: a job needs at least 1")
    if min_replicas > replicas:
        raise ConfigError(f"--min-replicas {min_replicas} is more than --replicas {replicas}: lower it, or start more")
    if max_replicas is not None and max_replicas < replicas:
        raise ConfigError(f"--max-replicas {max_replicas} is less than --replicas {replicas}: raise it, or start fewer")
    if lanes is not None and lanes < 1:
        raise ConfigError(f"--lanes {lanes}: a step needs at least 1")
    if not script.is_file():
        raise ConfigError(f"script {script} does not exist or is no file: check the path")
    if not os.access(script, os.R_OK):
        raise ConfigError(f"script {script} cannot be read: check its permissions")
    if 0 < hang_factor < 1.5:
        raise ConfigError(
            f"--hang-factor {hang_factor:g}: steps that vary as usual would be called hangs; give at least 1.5, or 0 to "
            "judge nobody"
        )
    parse(",".join(faults))
