"""Regrow's Checkpointer as one of the ways."""

from pathlib import Path
from typing import TYPE_CHECKING

from regrow.checkpoint import Checkpointer

if TYPE_CHECKING:
    from compare.jobs.ways import Loop


class Regrow:
    def __init__(self, loop: "Loop", folder: Path, is_prepared: bool = True) -> None:
        self._loop = loop
        self.checkpointer = Checkpointer(folder, keep_last=1)
        self.objects = {"model": loop.model, "optimizer": loop.optimizer}
        if is_prepared:
            self.checkpointer.restore(**self.objects)

    def begin(self) -> None:
        self.checkpointer.save(self._loop.index, **self.objects)

    def before_step(self) -> None:
        self.checkpointer.copied()  # the optimizer's hook would wait for the same

    def is_durable(self) -> bool:
        report = self.checkpointer.report()
        return report.begun == report.durable

    def finish(self) -> float:
        self.checkpointer.wait()
        return self.checkpointer.report().persisted_s
