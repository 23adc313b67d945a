"""Lines on which members feed listeners: ordered, and lost whole with whatever was under way."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from regrow.core.effects import Commit, Hear, Load
from regrow.core.errors import PeerError
from regrow.core.events import (
    Event,
    Housed,
    ListenerCame,
    ListenerGone,
    Loaded,
    LoadFailed,
    Overran,
    Recorded,
    SnapshotsTaken,
    Unheard,
)
from regrow.core.hearing import Hearing
from regrow.core.listener import Feed, Heard, Listener, Record
from regrow.core.records import SnapshotLoaded
from regrow.core.roster import Member

if TYPE_CHECKING:
    from regrow.sim.process import Process
    from regrow.sim.world import World

_MOST_UNREAD = 4
"""A line with more messages on it that the listener does not take is closed."""
_RECORD_BYTES = 1 << 16


class _Line:
    """From one member to one listener."""

    def __init__(self, peer: "Process") -> None:
        self.peer = peer
        self.open = True
        self.is_lost = False
        """The listener reads nothing more of it."""
        self.down_s = 0.0
        self.unread = 0
        """Messages that the listener has not taken yet."""
        self.snapshot: tuple[int, int | None] | None = None
        """Step and state."""


class _Try:
    """One listener, with its lines."""

    def __init__(self, process: "Process", effect: Hear) -> None:
        self.process = process
        self.listener = effect.listener
        self.roster = effect.roster
        self.hearing = Hearing(effect.roster.members)
        self.lines: dict[Member, _Line] = {}
        self.open = True
        self.gradients: dict[int, int] = {}
        """Of the records that are not whole yet, by step."""


class Feeds:
    """`room`: so many records a listener may have before it; more, and it cannot keep up."""

    def __init__(self, world: "World", room: int) -> None:
        self._world = world
        self._room = room
        self._tries: dict[Listener, _Try] = {}

    # The listener

    def hear(self, process: "Process", effect: Hear) -> None:
        self.hush(process)
        if any(tried.open and tried.process.alive for tried in self._tries.values()):
            self._world.sights.see("two joiners listened at once")
        tried = self._tries[effect.listener] = _Try(process, effect)
        for member in effect.roster.members:
            delay_s = self._world.chance.soon_s()
            self._world.timeline.after(delay_s, process, self._reach, tried, member)

    def hush(self, process: "Process", peers: tuple[Member, ...] = ()) -> None:
        for tried in [t for t in self._tries.values() if t.process is process and t.open]:
            for line in [tried.lines[peer] for peer in peers if peer in tried.lines]:
                if line.open:
                    self._break(tried, line)
            if not peers:
                self._end(tried)

    def load(self, process: "Process", effect: Load) -> None:
        process.state = None  # bytes are being written over it
        self._world.timeline.after(process.work_s(), process, self._load, process, effect)

    def _load(self, process: "Process", effect: Load) -> None:
        tried = self._tries[effect.listener]
        lines = [line for line in tried.lines.values() if line.open and line.peer.alive and line.snapshot is not None]
        if not tried.open or not lines:
            process.answer(LoadFailed(listener=effect.listener, why="no donor is left"))
            return
        offers = {line.snapshot for line in lines if line.snapshot is not None}
        if {step for step, _ in offers} != {effect.step} or len(offers) > 1:
            self._world.referee.fail("donor-step", f"{process.name} wants step {effect.step}, was offered {offers}")
        (step, state) = offers.pop()
        donors = tuple(line.peer.member for line in lines)
        fact = SnapshotLoaded(listener=effect.listener, step=step, donors=donors, size_bytes=8, digest=str(state))
        process.load(state, step, fact, lines[0].peer.line)
        process.answer(Loaded(listener=effect.listener))

    def donors(self, process: "Process") -> list["Process"]:
        """From whom it could load, or loads."""
        tries = [tried for tried in self._tries.values() if tried.process is process and tried.open]
        lines = [line for tried in tries for line in tried.lines.values() if line.open and line.snapshot is not None]
        return [line.peer for line in lines if line.peer.alive]

    def joiners(self, donor: "Process") -> set[Member]:
        """Who loads from it at this moment."""
        tries = [tried for tried in self._tries.values() if tried.open and tried.process.task == "Load"]
        lines = [(tried.process.member, tried.lines.get(donor.member)) for tried in tries]
        return {joiner for joiner, line in lines if line is not None and line.open and line.snapshot is not None}

    def _reach(self, tried: _Try, member: Member) -> None:
        peer = self._world.agent.processes[member]
        if not tried.open:
            return
        if not peer.alive or peer.hung or self._world.groups.are_split(tried.process.member, member):
            self._world.timeline.after(self._world.chance.between(0.05, 1.0), tried.process, self._lose, tried, member)
            return
        line = tried.lines[member] = _Line(peer)
        self._world.timeline.after(self._world.chance.soon_s(), peer, self._attend, line, tried.listener)

    def _attend(self, line: _Line, listener: Listener) -> None:
        if line.open:  # else it was lost before the member knew of it: it must not hear of the loss first
            self._came(line.peer, listener)

    def _came(self, peer: "Process", listener: Listener) -> None:
        peer.feed(ListenerCame(listener=listener))
        self._tell(peer, Housed())

    # The members

    def snap(self, process: "Process", step: int, feed: Feed) -> None:
        tried = self._tries[feed.listener]
        line = tried.lines.get(process.member)
        if line is not None and line.open:
            line.snapshot = (step, process.state)
            self._carry(tried, line, self._begin, step)
        self._tell(process, Housed())

    def send(self, process: "Process", commit: Commit, gradient: int) -> None:
        record = Record(
            step=commit.step,
            attempt=commit.attempt,
            digest=commit.digest,
            holdings=commit.holdings,
            last=commit.last,
            switch=commit.switch,
            save=commit.save,
            lane=commit.lane,
        )
        for feed in commit.feeds:
            tried = self._tries[feed.listener]
            line = tried.lines.get(process.member)
            if line is not None and line.open:
                self._carry(tried, line, self._part, record, feed, gradient)

    def leave(self, process: "Process") -> None:
        """The process is gone, with all its lines."""
        self.hush(process)
        for tried in self._tries.values():
            line = tried.lines.get(process.member)
            if line is not None and line.open:
                self._break(tried, line)

    def cut(self) -> None:
        """Some line is lost, though both ends live."""
        lines = [
            (tried, line) for tried in self._tries.values() for line in tried.lines.values() if tried.open and line.open
        ]
        if lines:
            self._break(*self._world.chance.one_of(lines))

    # On the way

    def _carry(self, tried: _Try, line: _Line, call: object, *args: object) -> None:
        now = self._world.timeline.now
        line.unread += 1
        if line.unread > _MOST_UNREAD:
            self._world.sights.see("a listener took too little")
            self._break(tried, line)
            return
        line.down_s = max(line.down_s, now + self._world.chance.soon_s())
        self._world.timeline.after(line.down_s - now, tried.process, self._arrive, tried, line, call, *args)

    def _arrive(self, tried: _Try, line: _Line, call: object, *args: object) -> None:
        line.unread -= 1
        if not tried.open or line.is_lost:
            return
        if not line.open and self._world.chance.happens(0.5):
            line.is_lost = True  # what was under way may still be read, up to some message
            return
        assert callable(call)
        self._attempt(tried, lambda: call(tried, line, *args))

    def _attempt(self, tried: _Try, call: Callable[[], None]) -> None:
        try:
            call()
        except PeerError as error:
            self._end(tried)
            tried.process.feed(Unheard(listener=tried.listener, why=str(error), named=tried.hearing.is_named))

    def _begin(self, tried: _Try, line: _Line, step: int) -> None:
        if (begun := tried.hearing.begins(line.peer.member, step)) is not None:
            tried.process.feed(SnapshotsTaken(listener=tried.listener, step=begun.step))

    def _part(self, tried: _Try, line: _Line, record: Record, feed: Feed, gradient: int) -> None:
        tried.gradients[record.step] = gradient
        span = feed.span(_RECORD_BYTES)
        self._give(tried, tried.hearing.part(line.peer.member, record, span, _RECORD_BYTES, feed.is_first))

    def _give(self, tried: _Try, whole: list[Record]) -> None:
        for each in whole:
            unread = len(tried.process.attendance.listening.records) if tried.process.attendance.listening else 0
            if unread >= self._room:
                self._end(tried)
                self._world.sights.see("a queue overflowed")
                tried.process.feed(Overran(listener=tried.listener, why=f"{unread} records wait"))
                return
            heard = Heard(record=each, gradient=tried.gradients.pop(each.step))
            tried.process.feed(Recorded(listener=tried.listener, heard=heard))

    def _break(self, tried: _Try, line: _Line) -> None:
        line.open = False
        if line.peer.alive:
            self._tell(line.peer, ListenerGone(listener=tried.listener))
        self._world.timeline.after(self._world.chance.soon_s(), tried.process, self._lose, tried, line.peer.member)

    def _lose(self, tried: _Try, member: Member) -> None:
        if tried.open:
            if member in tried.lines:
                tried.lines[member].is_lost = True
            self._attempt(tried, lambda: self._go_on_without(tried, member))

    def _go_on_without(self, tried: _Try, member: Member) -> None:
        self._give(tried, tried.hearing.lost(member))
        self._world.sights.see("a listener went on without a peer")

    def _end(self, tried: _Try) -> None:
        tried.open = False
        for line in tried.lines.values():
            if line.open:
                line.open = False
                self._tell(line.peer, ListenerGone(listener=tried.listener))

    def _tell(self, peer: "Process", event: Event) -> None:
        if peer.alive:
            self._world.timeline.after(self._world.chance.soon_s(), peer, peer.feed, event)
