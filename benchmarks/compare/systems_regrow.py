"""Regrow, as it comes and with what it offers besides."""

import sys
from dataclasses import dataclass
from pathlib import Path

from compare.ports import free_port
from compare.systems import Command, Work

JOB = Path(__file__).parent / "jobs" / "regrow_job.py"
REGROW = Path(sys.executable).with_name("regrow")


@dataclass(frozen=True)
class Regrow:
    settings: str
    explained: str
    flags: tuple[str, ...] = ()
    has_coordinator: bool = False
    """As a process of its own."""
    saves: bool = False
    name: str = "Regrow"

    def unavailable(self) -> str:
        return "" if REGROW.exists() else f"{REGROW} is not there: run `make setup`"

    def name_of(self, replica: int) -> str:
        """A pattern for how its output blames a replica."""
        return rf"\br{replica}\.\d+ (killed|hangs|exited|ended)"

    def commands(self, work: Work, folder: Path) -> list[Command]:
        found = []
        run = [str(REGROW), "run", f"--replicas={work.replicas}", *self.flags]
        if self.has_coordinator:
            where = [f"127.0.0.1:{free_port()}", "--run-dir", str(folder / "run")]
            found.append(
                Command(
                    name="coordinator", argv=[str(REGROW), "coordinator", "--listen", *where], ready="start the job with"
                )
            )
            run += ["--coordinator", *where]
        if self.saves and work.save_every:
            run += ["--checkpoint", str(folder / "saved"), f"--checkpoint-every={work.save_every}"]
        launcher = Command(name="launcher", argv=[*run, str(JOB), *work.arguments(folder)])
        return [*found, launcher]


DEFAULT = Regrow("default", "no flag but --replicas; nothing is saved")
OFTEN = ("--restart-backoff=0", "--max-restarts=1000")
BEST = Regrow(
    "best",
    "a parked spare (--spares 1), room for ten records of the heavy model (--join-queue-mb 4096), --restart-backoff 0, a "
    "coordinator of its own, and --checkpoint where the others save",
    flags=("--spares=1", "--join-queue-mb=4096", *OFTEN),
    has_coordinator=True,
    saves=True,
)
SHADOW = Regrow(
    "shadow",
    "as best, and the spare stays in step with the others (--shadow)",
    flags=("--spares=1", "--shadow", "--join-queue-mb=4096", *OFTEN),
    has_coordinator=True,
    saves=True,
)
SYSTEMS = [BEST, SHADOW, DEFAULT]
