"""What every_step.py times: the example's GPT, a block of steps on request, or as it comes.

With a socket it asks that for blocks: the orchestrator names one job at a time, while the others wait. It says besides how
long its training thread was in the log, or waited for it: what of the log is written beside the backward does not count, but
for what comes with the last bucket, which the training thread may be waiting for.
"""

import os
import sys
import time

from overhead_job import SEED, Blocks, build, loss_of

import regrow
from regrow.state.gradient import Gradient
from regrow.worker.early import Early
from regrow.worker.logbook import Logbook


class Logged(Blocks):
    """A block's time, and the part of it that went into the log."""

    def __init__(self, address: str, kind: str, rank: int) -> None:
        self.log_s = 0.0
        super().__init__(address, kind, rank)

    def _say(self, what: dict[str, object]) -> None:
        super()._say({**what, "log_s": self.log_s})
        self.log_s = 0.0


def main(address: str, kind: str, size: str, lanes: int, batch_size: int) -> None:
    job = regrow.join(lanes=lanes, seed=SEED)
    model, optimizer, text = build(size)
    job.track(model=model, optimizer=optimizer)
    data = job.data(text, batch_size=batch_size)
    blocks = Logged(address, kind, int(os.environ["REGROW_REPLICA"][1:])) if address else None
    if blocks is not None:
        time_log(blocks)
    for step in job.steps(10**9, data):
        if blocks is not None and not blocks.step_begins():
            os._exit(0)  # the orchestrator ends the job; there is no last step to agree on
        for batch in step:
            step.backward(loss_of(model, batch))
        optimizer.step()
        optimizer.zero_grad()
        if blocks is not None:
            blocks.step_ended()
        if step.index == 0 and step.reporter:
            print(f"parameters {sum(p.numel() for p in model.parameters())}", flush=True)


def time_log(blocks: Logged) -> None:
    write = Logbook.write

    def timed(self: Logbook, *args: object) -> None:
        begun_s = time.perf_counter()
        write(self, *args)  # type: ignore[arg-type]
        blocks.log_s += time.perf_counter() - begun_s

    Logbook.write = timed  # type: ignore[method-assign]
    arrived = Early.arrived

    def timed_last(self: Early, result: Gradient, start: int, stop: int) -> None:
        begun_s = time.perf_counter()
        arrived(self, result, start, stop)
        if start == 0:  # buckets travel from the last parameters to the first
            blocks.log_s += time.perf_counter() - begun_s

    Early.arrived = timed_last  # type: ignore[method-assign]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
