"""The life of a data worker: takes errands off its line, one after the other, and sends back what it made."""

import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from typing import Any, NoReturn, Protocol

import msgspec
import torch

from regrow.core.errands import Ask, Drop, Errand
from regrow.core.errors import ConfigError
from regrow.shell.parentage import pass_over_sigterm
from regrow.worker.parcel import Parcel, pack

PACKET_BYTES = 64 * 1024
"""Of an order, and of the words that come with a microbatch."""


class Source(Protocol):
    def make(self, errand: Errand, /) -> Any: ...


class Made(msgspec.Struct, frozen=True, array_like=True):
    """The answer to an errand; the descriptor of the parcel's memory comes with it."""

    errand: Errand
    took_s: float
    is_error: bool
    """The parcel is what was raised, as (exception or None, traceback)."""
    parcel: Parcel


class Order(msgspec.Struct, frozen=True, array_like=True):
    errand: Errand
    is_wanted: bool
    """False: no longer."""


def encode(order: Ask | Drop) -> bytes:
    packet = msgspec.msgpack.encode(Order(order.errand, isinstance(order, Ask)))
    if len(packet) > PACKET_BYTES - 1024:  # the answer repeats it, and says more
        raise ConfigError(
            f"the state_dict() of lane {order.errand.lane}'s stream has {len(packet)} bytes: too many for data workers "
            f"(they take {PACKET_BYTES - 1024}), and much for every step to carry. Make it smaller, or leave num_workers out"
        )
    return packet


def work(line: socket.socket, source: Source) -> NoReturn:
    """Until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the training process's to answer
    pass_over_sigterm()
    # The threads that torch had are not in this process, and would be waited for.
    torch.set_num_threads(1)
    todo: deque[Errand] = deque()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while _listen(line, todo):
            errand = todo.popleft()
            made, fd = _make(source, errand)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            try:
                socket.send_fds(line, [msgspec.msgpack.encode(made)], [fd])
            finally:
                os.close(fd)
    os._exit(0)


def _listen(line: socket.socket, todo: deque[Errand]) -> bool:
    """Take in all orders that are there, and wait for the first errand. False at the end."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while not todo or poll.poll(0):
        packet = line.recv(PACKET_BYTES)
        if not packet:
            return False
        order = msgspec.msgpack.decode(packet, type=Order)
        if order.is_wanted:
            todo.append(order.errand)
        else:
            with contextlib.suppress(ValueError):  # done already
                todo.remove(order.errand)
    return True


def _make(source: Source, errand: Errand) -> tuple[Made, int]:
    began = time.monotonic()
    try:
        parcel, fd = pack(source.make(errand))
        is_error = False
    except Exception as error:  # the edge of the process: it is raised again in the training thread
        parcel, fd = pack((_portable(error), "".join(traceback.format_exception(error))))
        is_error = True
    return Made(errand, time.monotonic() - began, is_error, parcel), fd


def _portable(error: Exception) -> Exception | None:
    """The exception, if it survives the way."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error if type(copy) is type(error) else None
