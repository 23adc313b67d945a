"""State on its way from donors to joiners. Completes when both are in it; breaks or hangs when one is gone."""

from typing import TYPE_CHECKING

from regrow.core.effects import Fetch, Serve
from regrow.core.events import Fetched, Served
from regrow.core.records import StateFetched
from regrow.core.roster import Member, Version
from regrow.sim.groups import Groups
from regrow.sim.slot import Slot, State

if TYPE_CHECKING:
    from regrow.sim.process import Process
    from regrow.sim.world import World


class _Serving(Slot):
    def __init__(self, process: "Process", effect: Serve, transfers: "Transfers") -> None:
        super().__init__(process, effect.version)
        self.step = effect.step
        self.value = process.state
        self.missing = set(effect.joiners)
        self._transfers = transfers

    def peer_closed(self, peer: Member, groups: Groups) -> None:
        if peer in self.missing:
            self._transfers.gave_up(self, peer)


class _Fetching(Slot):
    def __init__(self, process: "Process", effect: Fetch) -> None:
        super().__init__(process, effect.version)
        self.step = effect.step
        self.donor = effect.donor

    def peer_closed(self, peer: Member, groups: Groups) -> None:
        if peer == self.donor:
            groups.maybe_break(self)


class Transfers:
    def __init__(self, world: "World", groups: Groups) -> None:
        self._world = world
        self._groups = groups
        self._offers: dict[tuple[Version, Member], _Serving] = {}
        self._asks: dict[tuple[Version, Member], list[_Fetching]] = {}

    def serve(self, process: "Process", effect: Serve) -> None:
        group = self._groups.group(effect.version)
        offer = _Serving(process, effect, self)
        process.slot = group.slots[process.member] = offer
        if process.member in group.closed:
            self._groups.break_in(offer, self._world.chance.between(0.001, 2.0))
            return
        self._offers[effect.version, process.member] = offer
        for joiner in sorted(offer.missing & group.closed):
            self.gave_up(offer, joiner)
        for ask in self._asks.get((effect.version, process.member), []):
            self._begin(offer, ask)

    def fetch(self, process: "Process", effect: Fetch) -> None:
        group = self._groups.group(effect.version)
        ask = _Fetching(process, effect)
        process.slot = group.slots[process.member] = ask
        process.state = None  # bytes are being written over it
        if process.member in group.closed:
            self._groups.break_in(ask, self._world.chance.between(0.001, 2.0))
            return
        self._asks.setdefault((effect.version, effect.donor), []).append(ask)
        offer = self._offers.get((effect.version, effect.donor))
        if effect.donor in group.closed:
            self._groups.maybe_break(ask)
        elif offer is not None:
            self._begin(offer, ask)

    def _begin(self, offer: _Serving, ask: _Fetching) -> None:
        if ask.state is State.WAITING and offer.state is State.WAITING:
            if ask.step != offer.step:
                self._world.referee.fail(
                    "donor-step", f"{ask.process.member} wants step {ask.step}, was offered {offer.step}"
                )
            ask.state = State.DUE
            self._world.timeline.after(self._world.chance.soon_s(), ask.process, self._fetched, offer, ask)

    def _fetched(self, offer: _Serving, ask: _Fetching) -> None:
        if ask.state is not State.DUE:
            return
        ask.state = State.OVER
        process = ask.process
        self._groups.group(ask.version).slots.pop(process.member, None)
        digest = str(offer.value)
        fact = StateFetched(version=ask.version, step=ask.step, donor=ask.donor, size_bytes=8, digest=digest)
        process.load(offer.value, ask.step, fact, self._world.line(ask.version))
        offer.missing.discard(process.member)
        self._maybe_served(offer)
        process.answer(Fetched(version=ask.version))

    def gave_up(self, offer: _Serving, joiner: Member) -> None:
        """The donor may notice at once, fail, or hang until its own abort."""
        if self._world.chance.happens(0.4):
            offer.missing.discard(joiner)
            self._maybe_served(offer)
        else:
            self._groups.maybe_break(offer)

    def _maybe_served(self, offer: _Serving) -> None:
        if not offer.missing and offer.state is State.WAITING:
            offer.state = State.DUE
            self._world.timeline.after(self._world.chance.soon_s(), offer.process, self._served, offer)

    def _served(self, offer: _Serving) -> None:
        if offer.state is not State.DUE:
            return
        offer.state = State.OVER
        self._groups.group(offer.version).slots.pop(offer.process.member, None)
        offer.process.answer(Served(version=offer.version))
