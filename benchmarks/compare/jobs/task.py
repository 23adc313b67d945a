"""What every job does besides training: reads what is asked of it, waits for its turn, hangs when it is told to, and notes
what it has done. The standard library alone.

    task = Task(replica)             reads the arguments that `Work.arguments` made; others are left to the job
    task.up(step)                    before the first step, and before any peer gives it the state: `step` is what it knows
    for each step:
        task.begin(step)             before anything of the step, also before a system's own quorum or barrier
        task.batch(step, microbatch) after the backward of each microbatch
        task.commit(step)            when the optimizer has applied the step
    task.end(steps, digest)
"""

import argparse
import threading
import time
from pathlib import Path

from steplog import StepLog
from turns import Turns


class Task:
    def __init__(self, replica: int) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--folder", type=Path, required=True)
        parser.add_argument("--size", required=True)
        parser.add_argument("--replicas", type=int, required=True)
        parser.add_argument("--microbatches", type=int, required=True)
        parser.add_argument("--steps", type=int, required=True)
        parser.add_argument("--save-every", type=int, default=0)
        parser.add_argument("--hang", default="")
        args, _ = parser.parse_known_args()
        self.replica = replica
        self.folder: Path = args.folder
        self.size: str = args.size
        self.replicas: int = args.replicas
        self.microbatches: int = args.microbatches
        self.steps: int = args.steps
        self.save_every: int = args.save_every
        self.saved: Path = args.folder / "saved"
        self._hang: str = args.hang
        self._turns = Turns(args.folder / "turns")
        self._log = StepLog(args.folder / "steps", replica)

    def share(self, replicas: int | None = None) -> range:
        """The microbatches of a step that are this replica's, where nobody is lost."""
        return range(self.replica, self.microbatches, replicas or self.replicas)

    def up(self, step: int) -> None:
        self._log.note("up", step)

    def begin(self, step: int) -> None:
        self._turns.wait(step)
        self._log.note("begin", step)

    def batch(self, step: int, microbatch: int) -> None:
        if self._hang == f"{self.replica}:{step}" and self._is_first_life():
            self._log.note("hang", step)
            threading.Thread(target=_sleep_for_ever).start()
            _sleep_for_ever()
        self._log.note("batch", step, microbatch=microbatch)

    def commit(self, step: int) -> None:
        self._log.note("commit", step)

    def end(self, step: int, digest: str) -> None:
        self._log.note("end", step, digest=digest)

    def _is_first_life(self) -> bool:
        try:
            (self.folder / "hung").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _sleep_for_ever() -> None:
    while True:
        time.sleep(1.0)
