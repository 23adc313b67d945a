"""tiny.py, except that replica r1 dies in every life: first in a step, later before it joins. The others wait for it, in a
lane, until the job has given it up."""

import os
import signal
import time

import tiny
import torch


class Points(tiny.Points):
    calls = 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        Points.calls += 1
        if Points.calls == 7 and os.environ.get("REGROW_REPLICA") == "r1":
            os.kill(os.getpid(), signal.SIGKILL)
        if Points.calls == 25 and "REGROW_RUN_DIR" in os.environ:
            wait_given_up()
        return super().__getitem__(index)


def wait_given_up() -> None:
    deadline = time.monotonic() + 60
    while not tiny.facts("coordinator", "ReplicaLost"):
        if time.monotonic() > deadline:
            raise TimeoutError("r1 was not given up")
        time.sleep(0.005)


if __name__ == "__main__":
    if os.environ.get("REGROW_REPLICA") == "r1" and os.environ["REGROW_INCARNATION"] != "0":
        os.kill(os.getpid(), signal.SIGKILL)
    tiny.Points = Points
    tiny.main()
