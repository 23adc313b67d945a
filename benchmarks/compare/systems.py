"""A system under comparison, as the experiments see it: what to start, and whom to strike."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Work:
    """One training run, the same for every system."""

    size: str
    """The model: `large` (10.7 M parameters), `tiny` (4.7 K), or `heavy` (1.2 GB of state, cheap to compute)."""
    replicas: int
    microbatches: int
    """Microbatches of a step, over all replicas; a multiple of `replicas`."""
    steps: int
    save_every: int = 0
    """Steps from one checkpoint to the next, where the system restarts from checkpoints; 0: none is written."""
    hang: str = ""
    """`REPLICA:STEP`: that replica, in its first life, sleeps for ever in its first microbatch of that step, while a helper
    thread lives on."""

    def arguments(self, folder: Path) -> list[str]:
        """What `Task` in jobs/task.py reads; a system's command ends with them."""
        numbers = {name: getattr(self, name) for name in ("size", "replicas", "microbatches", "steps", "save_every", "hang")}
        given = {"folder": folder, **numbers}
        return [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A process that the harness starts and, for an experiment, kills and starts again."""

    name: str
    """`coordinator` (whoever decides who takes part), or `replica0`, `replica1`, or `launcher` where one starts all."""
    argv: list[str]
    environ: dict[str, str] = field(default_factory=dict)
    ready: str = ""
    """What it prints when the next command may be started; empty: at once."""


class System(Protocol):
    """One system with one choice of settings."""

    name: str
    """As it stands in tables: `torchft nightly`."""
    settings: str
    """`default` or `best`."""
    explained: str
    """The settings that were chosen and the page of its documentation that offers them, in one line."""

    def unavailable(self) -> str:
        """Why it cannot run here; empty: it can."""
        ...

    # A system whose output does not name processes by their pids also has `name_of(replica)`, a pattern for the words in
    # which it blames one.

    def commands(self, work: Work, folder: Path) -> list[Command]:
        """What to start, in order. Step logs go to `folder/steps`, checkpoints to `folder/saved`. Ports are chosen
        here, so that a coordinator that is started again with the same command is found where it was."""
        ...
