"""What an agent and its warm parent say to each other, one JSON packet each: neither room imports the other."""

from typing import Literal

import msgspec

PACKET_BYTES = 1 << 20


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the agent asks for. A launch comes with three descriptors: the worker's stdout, its stderr, its stamp's page."""

    do: Literal["launch", "remember", "forget"]
    pid: int = 0
    member: str = ""
    environ: dict[str, str] = {}
    cwd: str = ""
    script: str = ""
    argv: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the warm parent, or a worker it just forked, tells the agent."""

    what: Literal["ready", "started", "failed"]
    member: str = ""
    pid: int = 0
    why: str = ""
