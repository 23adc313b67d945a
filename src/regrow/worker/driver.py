"""Carries out what a member's Attendance decides.

Events come from the training thread, the session thread and formation threads; `tell` lets one in at a time. Effects that
any thread may carry out are carried out at once, by the caller. The training thread's work goes into a queue, which that
thread empties in `advance`: everything inside Regrow is done there, and what belongs to the user's loop is returned.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from regrow.core.attendance import Attendance
from regrow.core.boundary import Row, first_parted
from regrow.core.effects import (
    Abort,
    Adopt,
    Bound,
    Commit,
    Compute,
    Exchange,
    Fetch,
    Form,
    Hear,
    Hush,
    Leave,
    Load,
    Log,
    Merge,
    Recall,
    Reduce,
    Replay,
    Save,
    Serve,
    Snap,
    Tell,
    Work,
)
from regrow.core.errors import Mismatch, PeerError, StateError
from regrow.core.events import (
    Bounded,
    Broken,
    DismissalCame,
    Event,
    Exchanged,
    Fetched,
    Housed,
    ListenerCame,
    ListenerGone,
    ListenTold,
    Loaded,
    LoadFailed,
    Overran,
    ParkTold,
    Recalled,
    Reduced,
    Reread,
    RosterPushed,
    SaveDue,
    SaveWished,
    Served,
    StopAsked,
    Unheard,
)
from regrow.core.lanes import Cell
from regrow.core.listener import Record, part_of
from regrow.core.messages import Part, Timed
from regrow.core.origin import Origin
from regrow.core.progress import Phase
from regrow.core.records import (
    Fact,
    GroupsBroke,
    ListenerFed,
    ListenFailed,
    RecordsReplayed,
    RosterAdopted,
    RosterReceived,
    SnapshotLoaded,
    StateFetched,
    StateRecalled,
    StateServed,
    StateUnique,
)
from regrow.core.resolve import Manifest, Statement
from regrow.core.roster import Roster, Version
from regrow.core.saves import Urgency
from regrow.core.speeds import Gauge
from regrow.shell.faultpoint import faultpoint
from regrow.shell.stamp import Stamp
from regrow.state.gradient import Gradient
from regrow.state.record import summary
from regrow.worker.audit import Audit
from regrow.worker.expense import Expense
from regrow.worker.link import Depot, Link
from regrow.worker.partials import Partials
from regrow.worker.replica import Replica
from regrow.worker.waits import StampedGroup, waiting

_YOUNG = 3
"""In the first steps that a process itself takes part in, optimizers may make more state."""
_MEASURED_EVERY = 100

Turn = Compute | Commit | Leave
"""What only the user's loop can do."""


class Driver:
    def __init__(
        self,
        attendance: Attendance,
        replica: Replica,
        partials: Partials,
        audit: Audit,
        note: Callable[[Fact], None],
        stamp: Stamp,
    ) -> None:
        self.attendance = attendance
        self.replica = replica
        self.partials = partials
        self.audit = audit
        self.stamp = stamp
        self._note = note
        self._link: Link | None = None
        self._depot: Depot | None = None
        self._gauge = Gauge()
        self._replay: tuple[Version, Origin, float] | None = None
        """Under which roster this founder has recalled what, and since when it replays what follows."""
        self._committed_s = self._entered_s = 0.0
        """When the last step was; 0: none was yet."""
        self._entered = 0
        """How many steps, in this process."""
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Work] = queue.SimpleQueue()

    def connect(self, link: Link) -> None:
        self._link = link

    def keep(self, depot: Depot) -> None:
        """There is a vault."""
        self._depot = depot

    @property
    def depot(self) -> Depot:
        assert self._depot is not None, "nobody saves or recalls without a vault"
        return self._depot

    @property
    def link(self) -> Link:
        assert self._link is not None, "connect() comes first"
        return self._link

    # Any thread

    def tell(self, event: Event) -> None:
        if isinstance(event, Unheard | LoadFailed | Overran):
            self._note(ListenFailed(listener=event.listener, why=event.why))
        with self._lock:
            events = deque([event])
            while events:
                for effect in self.attendance.handle(events.popleft()):
                    if isinstance(effect, Abort | Form | Tell | Hear | Hush):
                        events.extend(self.link.perform(effect))
                    else:
                        self._hand(effect)
        if isinstance(event, ListenerCame):
            self.replica.prepare(self._house)
        elif isinstance(event, ListenerGone):
            self._clear()

    def _house(self) -> None:
        """There is memory for a snapshot: have some for parts of records too, and go on."""
        acting = self.attendance.acting
        if acting is not None and acting.seat(self.attendance.me) is not None:
            start, stop = part_of(self.partials.result_bytes, acting.index(self.attendance.me), len(acting.seats))
            self.link.make_room(stop - start)
        self.tell(Housed())
        self._clear()

    def _clear(self) -> None:
        """Memory for a snapshot that nobody waits for any more is given back."""
        if not self.attendance.is_awaited:
            self.replica.forget()

    def expected(self, count: int) -> tuple[Cell, ...]:
        with self._lock:
            return self.attendance.expected(count)

    def pushed(self, roster: Roster) -> None:
        if roster.version > self.attendance.seen:
            self._note(RosterReceived(version=roster.version, cause=roster.cause))
        self.tell(RosterPushed(roster=roster))

    def listen_told(self, roster: Roster) -> None:
        self.tell(ListenTold(roster=roster))

    def park_told(self) -> None:
        self.tell(ParkTold())

    def dismissed(self, within_s: float) -> None:
        self.tell(DismissalCame(within_s=within_s))

    def stop_asked(self) -> None:
        self.tell(StopAsked())

    def save_asked(self) -> None:
        self.tell(SaveWished(urgency=Urgency.ASKED))

    def save_again(self, urgency: Urgency) -> None:
        """The last one is void."""
        self.tell(SaveWished(urgency=urgency))

    def save_due(self) -> None:
        """By the vault's clock."""
        self.tell(SaveDue())

    def refused(self, why: str, is_lost: bool) -> None:
        self._hand(Leave(why=why, fault="refused" if is_lost else "evicted"))

    def _hand(self, work: Work) -> None:
        self.stamp.call(self.stamp.count)  # first: once it has the work, the training thread may be in its next wait
        self._work.put(work)

    # The training thread

    def advance(self) -> Turn:
        """Do what is asked until it is the user's turn."""
        while True:
            work = self._next()
            if isinstance(work, Compute | Commit | Leave):
                return work
            self._do(work)

    def enter(self) -> Turn | Reduce:
        """As advance, but stop where the step to enter is known: before its first lane, or its reduce."""
        if self._replay is not None and self.attendance.step >= self._replay[1].through:
            replay, self._replay = self._replay, None
            self._arrived(*replay)
        elif self._depot is not None and self._depot.logbook is not None:
            self._measure(self._depot.logbook.expense)
        if self._entered < _YOUNG or self._entered % _MEASURED_EVERY == 0:
            self.replica.measure()
        self._entered += 1
        while True:
            work = self._next()
            if isinstance(work, Compute | Commit | Leave | Reduce):
                return work
            self._do(work)

    def _measure(self, expense: Expense) -> None:
        now_s = time.monotonic()
        if self._entered_s and self._committed_s > self._entered_s:
            expense.stepped(now_s - self._committed_s, now_s - self._entered_s)
        self._entered_s = now_s

    def _next(self) -> Work:
        if not self._work.empty():
            return self._work.get()
        self.stamp.enter(Phase.WAIT)
        work = self._work.get()
        self.stamp.enter(Phase.TURN)
        return work

    def _do(self, work: Work) -> None:
        match work:
            case Adopt():
                self._adopt(work)
            case Merge(parent=parent):
                self.stamp.enter(Phase.MERGE)
                self.partials.merge(parent)
                self.stamp.enter(Phase.TURN)
            case Snap():
                self._snap(work)
            case Save():
                self._save(work)
            case Log():
                self._log(work)
            case Recall():
                self.tell(self._recall(work))
            case Replay(step=step):
                self.tell(self._reread(step))
            case Load():
                self.tell(self._load(work))
            case Exchange() | Fetch() | Serve() | Reduce() | Bound():
                try:
                    answer = self._answer(work)
                except PeerError as error:
                    self._note(GroupsBroke(version=work.version, why=str(error)))
                    answer = Broken(version=work.version, why=str(error))
                self.tell(answer)

    def flow(self, work: Reduce, lane: int) -> None:
        """This reduce will follow the lane's last microbatch, which is next: begin it if that can be."""
        try:
            group = self.link.group(work.version)
        except PeerError:
            return  # a newer roster is on its way in
        logbook = self._depot.logbook if self._depot is not None else None
        early = None if logbook is None else logbook.early(work.step, work.version, group.rank, group.size)
        self.partials.flow(group, work, lane, None if early is None else early.arrived)

    def reduce(self, work: Reduce) -> None:
        self._do(work)

    def _answer(self, work: Exchange | Fetch | Serve | Reduce | Bound) -> Event:
        match work:
            case Exchange(version=version, statement=statement):
                faultpoint("resolve", step=statement.step, roster=version.n)
                group = StampedGroup(self.link.group(version), self.stamp, Phase.EXCHANGE, Phase.TURN, statement.step)
                rows = group.gather(msgspec.msgpack.encode(statement))
                faultpoint("resolved", step=statement.step, roster=version.n)
                return Exchanged(version=version, table=tuple(msgspec.msgpack.decode(r, type=Statement) for r in rows))
            case Fetch():
                return self._fetch(work)
            case Serve():
                return self._serve(work)
            case Reduce(version=version, step=step):
                faultpoint("reduce", step=step, roster=version.n)
                self.stamp.enter(Phase.MERGE, step)
                group = StampedGroup(self.link.group(version), self.stamp, Phase.REDUCE, Phase.MERGE, step)
                if self.partials.flows(work):
                    with waiting(self.stamp, Phase.FLOW, Phase.MERGE, step):
                        self.partials.await_flow()
                digest = self.partials.reduce(group, work)
                self.stamp.enter(Phase.TURN)
                faultpoint("reduced", step=step, roster=version.n)
                return Reduced(version=version, digest=digest)
            case Bound():
                return self._bound(work)

    def _bound(self, work: Bound) -> Event:
        step = work.row.step
        faultpoint("farewell" if step >= self.replica.steps else "boundary", step=step, roster=work.version.n)
        if self.attendance.handed:
            faultpoint("handover", step=step, roster=work.version.n)
        group = StampedGroup(self.link.group(work.version), self.stamp, Phase.BOUND, Phase.TURN, step)
        state = self.audit.whole() if work.farewell else self.audit.digest()
        said = group.gather(msgspec.structs.replace(work.row, state=state).pack())
        rows = tuple(Row.unpack(data) for data in said)
        if all(row.state == state for row in rows):
            self.audit.passed(step)
            return Bounded(version=work.version, rows=rows)
        manifests = group.gather(msgspec.msgpack.encode(self.audit.manifest()))
        members = self.attendance.acting.members if self.attendance.acting else ()
        parted = first_parted(members, [msgspec.msgpack.decode(data, type=Manifest) for data in manifests])
        last = self.audit.last_equal(step)
        since = "" if last is None else f" (what was compared was still equal before step {last})"
        return Bounded(version=work.version, rows=rows, parted=parted + since)

    def _adopt(self, work: Adopt) -> None:
        resolution = work.resolution
        self.partials.drop(work.drop)
        share = resolution.share(self.attendance.me)
        self._note(
            RosterAdopted(
                version=resolution.version,
                step=resolution.step,
                keep=share.keep,
                compute=share.compute,
                drop=work.drop,
                why=resolution.why,
            )
        )
        if work.is_guarded:
            self._note(StateUnique(version=resolution.version, step=resolution.step))
        if resolution.is_planned:
            faultpoint("switched", step=resolution.step, roster=resolution.version.n)

    def _fetch(self, work: Fetch) -> Event:
        faultpoint("fetch", step=work.step, roster=work.version.n)
        with waiting(self.stamp, Phase.FETCH, Phase.HEAL, work.step):
            received = self.link.fetch(work)
        self.replica.take(received)
        self.stamp.enter(Phase.TURN)
        faultpoint("fetched", step=work.step, roster=work.version.n)
        self._note(
            StateFetched(
                version=work.version,
                step=work.step,
                donor=work.donor,
                size_bytes=received.size_bytes,
                digest=received.offer.digest,
            )
        )
        return Fetched(version=work.version)

    def _snap(self, work: Snap) -> None:
        self.stamp.enter(Phase.HEAL, work.step)
        self.link.snap(work, self.replica.snap(work.step))
        if self.attendance.is_awaited:
            self.replica.prepare(self._house)
        self.stamp.enter(Phase.TURN)
        self._note(ListenerFed(listener=work.feed.listener, step=work.step))

    def _save(self, work: Save) -> None:
        if work.urgency is Urgency.LAST:
            # It is waited for, as long as it takes: whoever is past the last step cannot hold anybody up.
            self.stamp.enter(Phase.LEAVING, work.step)
            self.depot.save(work)
            return
        self.stamp.enter(Phase.HEAL, work.step)
        self.depot.save(work)
        self.stamp.enter(Phase.TURN)

    def _recall(self, work: Recall) -> Event:
        origin = work.origin
        faultpoint("recall", step=origin.step, roster=work.version.n)
        begun_s = time.monotonic()
        with waiting(self.stamp, Phase.FETCH, Phase.HEAL, origin.step):
            size_bytes = self.depot.recall(origin)
        self.replica.measure()
        self.stamp.enter(Phase.TURN)
        faultpoint("recalled", step=origin.step, roster=work.version.n)
        seconds = time.monotonic() - begun_s
        self._note(
            StateRecalled(version=work.version, step=origin.step, digest=origin.root, size_bytes=size_bytes, seconds=seconds)
        )
        if self.depot.logbook is not None:
            self.depot.logbook.expense.loaded(seconds)
        self._replay = (work.version, origin, time.monotonic()) if origin.records else None
        return Recalled(version=work.version)

    def _log(self, work: Log) -> None:
        self.stamp.enter(Phase.MERGE, work.record.step)
        logbook = self.depot.logbook
        assert logbook is not None, "nobody logs but in an every-step job"
        logbook.write(work, self.partials.result)
        self.stamp.enter(Phase.TURN)

    def _reread(self, step: int) -> Event:
        """Of the records that follow the origin, the next."""
        faultpoint("replaying", step=step)
        self.stamp.enter(Phase.HEAL, step)
        heard = self.depot.replaying.read(step)
        self.stamp.enter(Phase.TURN)
        return Reread(heard=heard)

    def _arrived(self, version: Version, origin: Origin, since_s: float) -> None:
        """A founder has been through all that was committed after its origin."""
        seconds = time.monotonic() - since_s
        size_bytes = self.depot.replaying.size_bytes
        self._note(
            RecordsReplayed(
                version=version, step=origin.step, through=origin.through, size_bytes=size_bytes, seconds=seconds
            )
        )
        if self.depot.logbook is not None:
            self.depot.logbook.expense.replayed(origin.records, seconds)
        faultpoint("replayed", step=origin.through)

    def _load(self, work: Load) -> Event:
        faultpoint("load", step=work.step)
        try:
            with waiting(self.stamp, Phase.FETCH, Phase.HEAL, work.step):
                received = self.link.load(work, self.replica.place)
        except Mismatch:
            raise
        except (PeerError, StateError) as error:  # donors that differ: another snapshot, or another donor, may do
            return LoadFailed(listener=work.listener, why=str(error))
        self.replica.take(received)
        self.stamp.enter(Phase.TURN)
        faultpoint("loaded", step=work.step)
        self._note(
            SnapshotLoaded(
                listener=work.listener,
                step=work.step,
                donors=received.witnesses,
                blamed=tuple(sorted(received.blamed)),
                size_bytes=received.size_bytes,
                digest=received.offer.digest,
            )
        )
        return Loaded(listener=work.listener)

    def timed(self, lanes: int, seconds: float) -> None:
        """What was computed here of a step that is committed now took so long."""
        lane_s = self._gauge.computed(lanes, seconds)
        if lane_s is not None:
            self.link.perform(Tell(message=Timed(member=self.attendance.me, lane_s=lane_s, step=self.attendance.step)))

    def take_in(self, commit: Commit) -> None:
        """The result of a record is the step's."""
        gradient = commit.gradient
        self.partials.take_in(gradient.data, gradient.summary, commit.digest)
        gradient.release()

    def feed(self, commit: Commit, result: Gradient) -> None:
        """Before the user's code sees the result: it may do with it what it likes."""
        self._committed_s = time.monotonic()
        if not commit.feeds:
            return
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
        total_bytes = result.buffer.numel()
        for feed in commit.feeds:
            start, stop = feed.span(total_bytes)
            tail = summary(result) if feed.is_first else b""
            part = Part(record=record, total_bytes=total_bytes, start=start, size_bytes=stop - start, tail=tail)
            self.link.feed(feed.listener, part, result.buffer[start:stop])

    def _serve(self, work: Serve) -> Event:
        faultpoint("serve", step=work.step, roster=work.version.n)
        self.stamp.enter(Phase.HEAL, work.step)
        offer, views = self.replica.offer(work.step)
        with waiting(self.stamp, Phase.SERVE, Phase.TURN, work.step):
            self.link.serve(work, offer, views)
        self._note(StateServed(version=work.version, step=work.step, joiners=work.joiners))
        return Served(version=work.version)
