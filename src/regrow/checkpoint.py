"""Checkpoints in any training loop, without `regrow run`: `regrow.checkpoint.Checkpointer`. Importing this is cheap."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regrow.worker.account import Report
    from regrow.worker.checkpointer import Checkpointer

__all__ = ["Checkpointer", "Report"]


def __getattr__(name: str) -> object:
    if name == "Checkpointer":
        from regrow.worker.checkpointer import Checkpointer

        return Checkpointer
    if name == "Report":
        from regrow.worker.account import Report

        return Report
    raise AttributeError(f"module 'regrow.checkpoint' has no attribute {name!r}")
