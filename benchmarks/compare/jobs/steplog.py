"""What a training process of any system notes while it trains, so that one reader can judge all of them.

The standard library alone: it runs in the environments of all peers. One file for each process, one line for each fact,
flushed at once, because the process may be killed at any moment. Times are CLOCK_MONOTONIC, which all processes of a
machine share.

    up      the process stands before its first step: model and optimizer are built, a checkpoint is loaded
    begin   it begins to compute a step
    batch   it has finished the backward of one microbatch of that step
    hang    it hangs from here on, because it was told to
    commit  its optimizer has applied the step
    end     it is done; `digest` is that of its parameters
"""

import json
import os
import time
from pathlib import Path


class StepLog:
    def __init__(self, folder: str | Path, replica: int) -> None:
        self._replica = replica
        self._file = (Path(folder) / f"{replica}.{os.getpid()}.jsonl").open("a", buffering=1)

    def note(self, what: str, step: int, **more: object) -> None:
        line = {"at": time.monotonic(), "what": what, "replica": self._replica, "pid": os.getpid(), "step": step, **more}
        self._file.write(json.dumps(line) + "\n")
