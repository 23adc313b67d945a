"""How a joiner gets the job's state: it asks its donor, which answers from live memory once its training thread offers it.

Both sides run on the session's loop. The donor's parameters do not change meanwhile: its training thread waits here.
"""

import asyncio

import msgspec
import torch

from regrow.core.errors import PeerError, StateError
from regrow.core.messages import Ask, Offer, Thanks
from regrow.core.roster import Endpoint, Member, Version
from regrow.core.stripes import Stripe
from regrow.shell.faultpoint import faultpoint
from regrow.state.memory import bytes_of
from regrow.state.tracked import decode_skeleton
from regrow.state.tree import leaves
from regrow.wire.tcp import Connection, connect

_CONNECT_S = 10.0


class _Offering(msgspec.Struct, kw_only=True):
    offer: Offer
    views: list[memoryview]
    awaited: set[Member]
    done: "asyncio.Future[None]"


class Donor:
    """Answers joiners. One offering at a time: that of the newest roster."""

    def __init__(self) -> None:
        self._offerings: dict[Version, asyncio.Future[_Offering]] = {}
        self._floor: Version | None = None

    async def serve(self, version: Version, joiners: tuple[Member, ...], offer: Offer, views: list[memoryview]) -> None:
        """Returns once every joiner took the state or went away; PeerError when the roster is over first."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        offering = _Offering(offer=offer, views=views, awaited=set(joiners), done=done)
        promise = self._promise(version)
        if not promise.done():
            promise.set_result(offering)
        try:
            await done
        finally:
            self._offerings.pop(version, None)

    async def answer(self, connection: Connection, ask: Ask) -> None:
        offering = await asyncio.shield(self._promise(ask.version))
        if ask.member not in offering.awaited or ask.step != offering.offer.step:
            raise PeerError(f"{ask.member} asks for step {ask.step} of roster {ask.version}, which is not its to ask")
        try:
            await connection.send(offering.offer)
            for index, view in enumerate(offering.views):
                if index == len(offering.views) // 2:
                    faultpoint("serving", step=ask.step)
                if offering.done.done():
                    raise PeerError(f"roster {ask.version} is over")
                await connection.send_raw(view)
            if not isinstance(await connection.receive(), Thanks):
                raise PeerError(f"{ask.member} did not acknowledge the state")
        finally:
            offering.awaited.discard(ask.member)
            if not offering.awaited and not offering.done.done():
                offering.done.set_result(None)

    def forget(self, below: Version) -> None:
        self._floor = below
        for version in [version for version in self._offerings if version < below]:
            promise = self._offerings.pop(version)
            over = PeerError(f"roster {version} is over")
            if not promise.done():
                promise.set_exception(over)
                promise.exception()  # it may be that nobody waits for it
            elif promise.exception() is None and not promise.result().done.done():
                promise.result().done.set_exception(over)

    def _promise(self, version: Version) -> "asyncio.Future[_Offering]":
        if self._floor is not None and version < self._floor:
            raise PeerError(f"roster {version} is over, {self._floor} is the newest")
        if version not in self._offerings:
            self._offerings[version] = asyncio.get_running_loop().create_future()
        return self._offerings[version]


class Received(msgspec.Struct, kw_only=True):
    """A donor's state, as it arrived."""

    offer: Offer
    tensors: list[torch.Tensor]
    size_bytes: int
    is_ours: bool = False
    """The tensors were made or lent by this replica, and need not be copied again."""
    stripes: dict[Member, Stripe] = msgspec.field(default_factory=dict)
    """What each donor gave, of a striped transfer."""
    witnesses: tuple[Member, ...] = ()
    """Donors that declared this very state."""
    blamed: dict[Member, str] = msgspec.field(default_factory=dict)
    """Donors that hold or gave something else, and what."""
    lost: dict[Member, str] = msgspec.field(default_factory=dict)
    """Donors that died, stalled or never answered."""


async def fetch(endpoint: Endpoint, token: str, ask: Ask) -> Received:
    """Ask the donor and receive straight into fresh tensors."""
    connection = await connect(endpoint, token, str(ask.member), _CONNECT_S)
    try:
        await connection.send(ask)
        offer = await connection.receive()
        if not isinstance(offer, Offer) or offer.step != ask.step:
            raise PeerError(
                f"the donor at {endpoint} answered {type(offer).__name__} instead of the state of step {ask.step}"
            )
        tensors = _allocate(offer)
        for tensor in tensors:
            await connection.receive_raw_into(bytes_of(tensor))
        await connection.send(Thanks())
        return Received(offer=offer, tensors=tensors, size_bytes=sum(offer.sizes))
    finally:
        await connection.close()


def _allocate(offer: Offer) -> list[torch.Tensor]:
    named = sorted(leaves(decode_skeleton(offer.skeleton)), key=lambda leaf: leaf[0])
    tensors = [torch.empty(shape, dtype=dtype) for _, dtype, shape in named]
    sizes = tuple(tensor.numel() * tensor.element_size() for tensor in tensors)
    if sizes != offer.sizes or [index for index, _, _ in named] != list(range(len(named))):
        raise StateError("the donor's offer does not name each of its tensors once, with their sizes")
    return tensors
