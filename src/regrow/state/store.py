"""Where checkpoints lie: a folder, or whatever fsspec can reach. Without torch.

Paths are relative to the store's URL, with "/" between names. What `put` and `create` return from is durable (fsynced, or
acknowledged by the service) and whole; what they did not return from is absent under that path, whatever the moment at which
the process or the machine died. Leftovers under other names may remain until `sweep`.
"""

from collections.abc import Iterable
from typing import Protocol

from regrow.core.errors import StateError


class Store(Protocol):
    """InfraError, with the URL, the cause and what to do, when the store refuses or cannot be reached."""

    url: str

    def put(self, path: str, parts: Iterable[memoryview]) -> None:
        """Write a file of these parts, in order. An existing one is replaced whole."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file that is not there yet; False, and nothing written, when somebody else's is there.

        After an InfraError it may be there or not: read it before trying again.
        """

    def read(self, path: str) -> bytes | None:
        """A small file, whole; None when there is none."""

    def read_into(self, path: str, start: int, view: memoryview) -> None:
        """Fill the view with the file's bytes from `start` on. StateError when the file is missing or too short."""

    def size_bytes(self, path: str) -> int | None:
        """None when there is no such file."""

    def names(self, folder: str = "") -> list[str]:
        """Of files and folders directly below, sorted; [] when there is no such folder."""

    def settle(self, folder: str) -> None:
        """What has a name in this folder now keeps it, whoever made it and died before that was durable."""

    def remove(self, path: str) -> None:
        """A file, or a folder with all below it. No error when it is gone already."""


def names_in(path: str) -> tuple[str, ...]:
    """What "/" separates in a path. StateError for one that leads elsewhere: manifests name paths, and may be damaged."""
    names = tuple(path.split("/"))
    if any(name in ("", ".", "..") or "\0" in name for name in names):
        raise StateError(f"{path!r} is not a path below a store: names joined with '/', none of them empty, '.' or '..'")
    return names
