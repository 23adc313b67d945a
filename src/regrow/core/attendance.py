"""One member's way through steps and rosters.

The host's whole contract: feed every event to `handle`, carry out the effects in order. Effects of the training thread
come at most one at a time and each is answered by one event (see effects); the others are carried out at once, by
whichever thread called. Calls must not overlap: guard `handle` with a lock.

    waiting ──formed──> exchanging ──table──> (commit what is held) ──> fetching | serving ──> computing ──> reducing
       ^                                                                                                        │
       └───────────── a newer roster, or something broke: back to waiting, keep what is held ──────── bounding <┘

The rules it keeps (docs/protocol.md, invariants A1 to A6):
- The newest roster wins. An older one is ignored; one without this member ends it.
- The newest roster heard again means that the connection was lost: whatever the coordinator must still know is repeated.
- Nothing is done under a roster before its resolve table was seen.
- What is held for the step in doubt survives every change of roster, unless a resolution names another holder.
- A result is void once a resolution decided to redo its step.
- A step is committed by the boundary's verdict or by a resolution, and by nothing else.
- State is served only from an interaction point: parameters are then exactly those of `step`.
- A planned roster is entered by the verdict of a boundary, or by the record of one, and by nothing else (P1).
- A joiner that only listens holds no state in anybody's eyes before it has entered a roster (P3).
- The only holder of the state does not compute a lane that somebody died in.
- A founder of a job that begins from a saved state holds none before it has loaded that (S6), and replayed the committed
  records that follow it (L5).
- In an every-step job its part of a result lies in its log before it says that it holds it (L1), and those of the absent
  before it commits without them (L2).
- Whoever is left alone with the state wishes a save of it at once (S8).
"""

from collections.abc import Iterable
from enum import Enum
from typing import assert_never

from regrow.core import boundary, resolve
from regrow.core.ahead import Ahead, Result
from regrow.core.boundary import Corrupt, Parted, Pass, Row
from regrow.core.effects import (
    Abort,
    Adopt,
    Bound,
    Commit,
    Compute,
    Effect,
    Exchange,
    Fetch,
    Form,
    Hear,
    Hush,
    Leave,
    Load,
    Merge,
    Recall,
    Reduce,
    Replay,
    Save,
    Serve,
    Snap,
    Tell,
)
from regrow.core.errors import Invariant
from regrow.core.events import (
    Bounded,
    Broken,
    DismissalCame,
    Event,
    Exchanged,
    Fetched,
    FormationFailed,
    Formed,
    Housed,
    LaneDone,
    ListenerCame,
    ListenerGone,
    ListenTold,
    Loaded,
    LoadFailed,
    Overran,
    ParkTold,
    Recalled,
    Recorded,
    Reduced,
    Reread,
    RosterPushed,
    SaveDue,
    SaveWished,
    Served,
    SnapshotsTaken,
    StepEntered,
    StopAsked,
    Unheard,
)
from regrow.core.lanes import Cell, Node, lanes_in, leaf, merges, settled
from regrow.core.listener import Feed, Heard, Lane, Listener
from regrow.core.listening import Listening
from regrow.core.messages import (
    CaughtUp,
    Complain,
    Dismissed,
    Ending,
    Entered,
    FromMember,
    Left,
    Overflowed,
    Released,
    StatelessFound,
)
from regrow.core.order import mix
from regrow.core.origin import Origin
from regrow.core.resolve import Divided, Manifest, Resolution, Stateless, Statement
from regrow.core.roster import NO_VERSION, Member, Roster, Version
from regrow.core.saves import Urgency
from regrow.core.saving import Saving

_PATIENCE = 3
"""So often a joiner is cut off before the others are to wait for it: it may be too slow to be fed."""
_WHY = 400
"""So much of a reason is told: one may name every donor."""

Holdings = tuple[tuple[Node, ...], ...]


class Task(Enum):
    """What the training thread is doing."""

    WAITING = "waiting for a roster whose groups stand"
    AWAY = "in the user's code between two steps"
    LANE = "in the user's code inside a lane"
    BUSY = "in a collective or a transfer"
    GONE = "no longer a member"


class Attendance:
    """Decides; its shell (worker.driver, or the simulator) does."""

    def __init__(
        self,
        me: Member,
        *,
        lanes: int,
        steps: int,
        initial: Manifest = (),
        saves: tuple[int, ...] | None = None,
        logs: bool = False,
    ) -> None:
        """`saves`: the intervals of saves, in steps; None where there is no vault. `logs`: it is an every-step job."""
        self.me = me
        self.step = 0
        self.task = Task.AWAY
        self.holds_state = False
        self.held: frozenset[Node] = frozenset()
        self.result: Result | None = None
        self.roster: Roster | None = None
        self.acting: Roster | None = None
        """The roster whose resolution was adopted last; older than `roster` while that one is being entered."""
        self.next: Roster | None = None
        """A planned roster that is formed beside the acting one."""
        self._next_formed = False
        self.handed: tuple[Member, ...] = ()
        """Those who have gone on without this member, or may have: it has stated the row for that."""
        self._is_leaving = False
        """The others have gone on under a planned roster without this member."""
        self.listening: Listening | None = None
        self._tries = 0
        self._cut_off = 0
        """Tries that ended after they had begun."""
        self._overflowed: Overflowed | None = None
        self._auditing: tuple[Listening, Heard] | None = None
        """Committed once its lane is computed, whatever happens meanwhile: the user's loop is inside its step."""
        self._attached: dict[int, Listener] = {}
        """Listeners that have a line to us and are not fed yet."""
        self._is_housed = False
        """There is memory for the snapshot of one of them."""
        self._fed: dict[Listener, Feed] = {}
        self._unproven: set[Listener] = set()
        """Those of them that were sent no lane's digest yet."""
        self._lane: Lane | None = None
        """A lane computed here in this step, digested for the listeners."""
        self._lanes = lanes
        self._initial = initial
        self._origin: Origin | None = None
        """What this founder loads, or has loaded; None when it built what the job begins from, or is none."""
        self._is_recalled = False
        self._is_built = True
        """What it holds is what its script built: nothing was ever loaded over it."""
        self._last = steps
        self._formed = NO_VERSION
        self._attempt = NO_VERSION
        self._resolution: Resolution | None = None
        self._entered = NO_VERSION
        self._served = NO_VERSION
        self._stop = False
        self._saving = Saving(saves)
        self._ahead = Ahead(me, logs)
        self._ending = False
        self._complaint: Complain | None = None
        self._left: Left | None = None
        self._dismissed: Dismissed | None = None
        self._planned: tuple[tuple[tuple[Node, ...], ...], Holdings] = ((), ())

    @property
    def seen(self) -> Version:
        if self.next is not None:
            return self.next.version
        return self.roster.version if self.roster else NO_VERSION

    @property
    def is_replaying(self) -> bool:
        """It holds the origin, and not yet what was committed after it."""
        return self._is_recalled and not self.holds_state

    @property
    def has_overflowed(self) -> bool:
        """It cannot keep up by listening, and says so until it is seated."""
        return self._overflowed is not None

    @property
    def listens(self) -> bool:
        return self.listening is not None

    @property
    def is_awaited(self) -> bool:
        """Does somebody wait to be fed?"""
        return bool(self._attached)

    @property
    def entered(self) -> Version:
        return self._entered

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case RosterPushed(roster=roster):
                # A coordinator that made another roster may be one that has not heard of it.
                return self._pushed(roster) + self._say_dismissed()
            case Formed(version=version):
                if self.next is not None and version == self.next.version:
                    self._next_formed = True
                elif self.roster is not None and version == self.roster.version:
                    self._formed = version
                return self._settle()
            case FormationFailed(version=version, why=why):
                return self._complain(version, why)
            case Broken(version=version, why=why):
                self._free()
                return self._complain(version, why) + self._settle()
            case StepEntered():
                self._free()
                saves = self._saving.enter(self.step, self._last)
                return [*saves, *self._settle()] if self.task is not Task.GONE else []
            case LaneDone(lane=lane, digest=digest):
                self._free()
                if self._auditing is not None:
                    return self._audited(*self._auditing, digest)
                if digest is not None:
                    self._lane = Lane(lane=lane, digest=digest)
                return self._keep(lane) + self._settle()
            case Exchanged(version=version, table=table):
                self._free()
                return self._exchanged(version, table)
            case Fetched(version=version):
                self._free()
                return self._fetched(version)
            case Served():
                self._free()
                return self._settle()
            case Recalled():
                self._free()
                return self._recalled()
            case Reread(heard=heard):
                self._free()
                return self._replay(heard) if self.task is not Task.GONE else []
            case Reduced(version=version, digest=digest):
                self._free()
                # True whether or not a newer roster is known by now: the bytes are here, and resolve must hear of them.
                assert self.acting is not None, "what was reduced was asked for under a roster"
                members = self.acting.members
                self.result = Result(attempt=version, digest=digest, holdings=self._holdings(), members=members)
                return self._settle()
            case Bounded(rows=rows, parted=parted):
                self._free()
                return self._bounded(rows, parted)
            case ListenTold(roster=roster):
                return self._listen_told(roster) + self._say_dismissed()
            case ParkTold():
                return self._park_told()
            case SnapshotsTaken(listener=listener, step=step):
                if self.listening is not None and listener == self.listening.listener:
                    self.listening.snapshot = step
                return self._settle()
            case Loaded(listener=listener):
                self._free()
                if self.listening is not None and listener == self.listening.listener:
                    assert self.listening.snapshot is not None
                    self.listening.is_loaded, self.step = True, self.listening.snapshot
                return self._settle()
            case Recorded(listener=listener, heard=heard):
                if self.listening is not None and listener == self.listening.listener:
                    self.listening.records.append(heard)
                return self._settle()
            case LoadFailed(listener=listener, why=why):
                self._free()
                return self._unheard(listener, why, True) + self._settle()
            case Unheard(listener=listener, why=why, named=named):
                return self._unheard(listener, why, named) + self._settle()
            case Overran(listener=listener, why=why):
                return self._overran(listener, why)
            case ListenerCame(listener=listener):
                self._attached[listener.number] = listener
                return []
            case Housed():
                self._is_housed = bool(self._attached)
                return []
            case ListenerGone(listener=listener):
                self._attached.pop(listener.number, None)
                self._is_housed &= bool(self._attached)
                self._fed.pop(listener, None)
                self._unproven.discard(listener)
                return []
            case StopAsked():
                self._stop = True
                return []
            case SaveWished(urgency=urgency):
                self._saving.wish(urgency)
                return []
            case SaveDue():
                if self.acting is not None and self.acting.seat(self.me) is not None:
                    self._saving.due()  # whoever takes no part has no boundary at which its wish would be met
                return []
            case DismissalCame(within_s=within_s):
                self._dismissed = Dismissed(member=self.me, within_s=within_s)
                return self._say_dismissed()
        assert_never(event)

    def _free(self) -> None:
        if self.task is Task.WAITING:
            raise Invariant(f"{self.me}: an answer came, but the training thread was asked nothing")
        if self.task is not Task.GONE:
            self.task = Task.WAITING

    def _pushed(self, roster: Roster) -> list[Effect]:
        if self.task is Task.GONE or roster.version <= self.seen:
            return self._repeat(roster.version)
        seat = roster.seat(self.me)
        if self._goes_beside(roster):
            self.next, self._next_formed = roster, seat is None  # whoever leaves has nothing to form
            form: list[Effect] = [Form(roster=roster)] if seat is not None else []
            return form + self._complain_again()  # the coordinator that planned it may not have heard of it
        self.roster, self.next, self._is_leaving = roster, None, False
        if roster.base is not None and not self.holds_state and seat is not None:
            return self._form_planned()
        if seat is None:
            self.task = Task.GONE
            return [
                Abort(below=roster.version),
                Leave(why=f"roster {roster.version} goes on without {self.me}", fault="evicted"),
            ]
        if seat.founder and not self.holds_state:
            self._origin = roster.origin or self._origin
            self.holds_state = self._origin is None
        hush: list[Effect] = [Hush()] if self.listening is not None else []
        self.listening = self._overflowed = None
        return [Abort(below=roster.version), *hush, Form(roster=roster)]

    def _goes_beside(self, roster: Roster) -> bool:
        """Is it planned from the very roster that this member acts under?"""
        acting = self.acting
        return self.holds_state and acting is not None and acting is self.roster and acting.version == roster.base

    def _repeat(self, version: Version) -> list[Effect]:
        """Said once, these may have been lost with a connection or with a coordinator, and nobody else would say them."""
        if self._left is not None:
            return [Tell(message=self._left)]
        if self.task is Task.GONE or version != self.seen:
            return []
        effects: list[Effect] = []
        if self._ending:
            effects.append(Tell(message=Ending(member=self.me, step=self.step)))
        return effects + self._complain_again()

    def _complain_again(self) -> list[Effect]:
        if self._complaint is None or self._complaint.version not in self._current():
            return []
        return [Tell(message=self._complaint)]

    def _say_dismissed(self) -> list[Effect]:
        return [Tell(message=self._dismissed)] if self._dismissed is not None and self.task is not Task.GONE else []

    def _current(self) -> tuple[Version, ...]:
        """The roster that this member is in, or enters, and the one that is formed beside it."""
        return tuple(roster.version for roster in (self.roster, self.next) if roster is not None)

    def _complain(self, version: Version, why: str) -> list[Effect]:
        if self.task is Task.GONE or version not in self._current():
            return []  # a newer roster is already on its way in; it is the answer
        if self.next is not None and version == self.next.version:
            self._next_formed = False
        else:
            self._formed = NO_VERSION
        self._complaint = Complain(member=self.me, version=version, why=why)
        return [Tell(message=self._complaint)]

    def _settle(self) -> list[Effect]:
        """The next thing for an idle training thread; nothing while the newest roster's groups do not stand."""
        if self.task is not Task.WAITING:
            return []
        if self.listening is not None:
            return self._listen(self.listening)
        if self._is_leaving:
            return self._release()
        if self.is_replaying:
            return self._ask(Replay(step=self.step))
        if self.roster is None or self._formed != self.roster.version:
            return []
        if self._resolution is None or self._resolution.version != self.roster.version:
            if self.roster.base is not None:
                return []  # nobody resolves a planned roster
            if self._origin is not None and not self.holds_state:
                return self._recall(self.roster, self._origin)
            ahead = self._ahead.own(self.step, self.result, self._last, self._stop)
            return [*ahead, *self._ask(Exchange(version=self.roster.version, statement=self._statement()))]
        return self._go_on(self.roster, self._resolution)

    def _release(self) -> list[Effect]:
        assert self.acting is not None, "whoever leaves as planned has worked"
        self.task = Task.GONE
        told = Released(member=self.me, version=self.acting.version, step=self.step)
        return [Tell(message=told), Leave(why=f"{self.me} has handed over and leaves", fault="left")]

    def _recall(self, roster: Roster, origin: Origin) -> list[Effect]:
        if origin.is_beginning and not self._is_built:
            self.task = Task.GONE
            why = "the job begins again from what its script built, and here another state was loaded over that"
            return [Leave(why=why, fault="spent")]
        self._is_built = origin.is_beginning
        return self._ask(Recall(version=roster.version, origin=origin))

    def _recalled(self) -> list[Effect]:
        # Whatever the newest roster is by now: while a founder had not loaded the origin nobody could go past it.
        if self._origin is not None and self.task is not Task.GONE:
            self._is_recalled, self.step, self._initial = True, self._origin.step, ()
            self.holds_state = self.step == self._origin.through
        return self._settle()

    def _ask(self, work: Exchange | Fetch | Serve | Recall | Replay | Load | Reduce | Bound) -> list[Effect]:
        self.task = Task.BUSY
        return [work]

    def _statement(self) -> Statement:
        return Statement(
            member=self.me,
            holds_state=self.holds_state,
            step=self.step,
            attempt=self._attempt,
            complete=self.result is not None,
            digest=self.result.digest if self.result else 0,
            reporter=self._resolution.reporter if self.result and self._resolution else None,
            held=tuple(sorted(self.held)),
            handed=self.handed,
            last=self._last,
            manifest=self._initial if self.step == 0 else (),
        )

    def _exchanged(self, version: Version, table: tuple[Statement, ...]) -> list[Effect]:
        roster = self.roster
        if self.task is Task.GONE or roster is None or version != roster.version:
            return self._settle()  # superseded: all that was stated is still true and will be stated again
        outcome = self._resolve(roster, table)
        if isinstance(outcome, Divided):
            self.task = Task.GONE
            return [Leave(why=outcome.why, fault="divided")]
        if isinstance(outcome, Stateless):
            self.task = Task.GONE
            message = StatelessFound(member=self.me, version=version, why=outcome.why)
            return [Tell(message=message), Leave(why=outcome.why, fault="stateless")]
        if self.me in outcome.left:
            return self._release()
        if self.step < outcome.step:
            self._ahead.decided(self.step, self.result, table)
        self._resolution, self.acting, self._last, self.handed = outcome, roster, outcome.last, ()
        self._feed_among(roster)
        drop: tuple[Node, ...] = ()
        if self.holds_state and self.step == outcome.step:
            self.result, self._attempt = None, version
            keep = outcome.share(self.me).keep
            drop = tuple(sorted(self.held - set(keep)))
            self.held = frozenset(keep)
        return [self._adopt(roster, outcome, drop), *self._settle()]

    def _adopt(self, roster: Roster, resolution: Resolution, drop: tuple[Node, ...] = ()) -> Adopt:
        # What this member has just recalled lies in memory already; the job's own beginning does not.
        origin = self._origin
        is_copied = origin is not None and not origin.is_beginning and self.step <= origin.step
        is_unique = self.holds_state and len(roster.seats) == 1 and not is_copied
        return Adopt(resolution=resolution, drop=drop, is_guarded=is_unique and self._saving.guard())

    def _resolve(self, roster: Roster, table: tuple[Statement, ...]) -> Resolution | Stateless | Divided:
        return resolve.resolve(roster, self._lanes, table)

    def _fetched(self, version: Version) -> list[Effect]:
        # Superseded meanwhile: others may have gone past what was loaded; fetch again under the newest roster.
        if self._resolution is not None and version == self.seen:
            self.holds_state, self.step, self._attempt = True, self._resolution.step, version
        return self._settle()

    def _go_on(self, roster: Roster, resolution: Resolution) -> list[Effect]:
        if not self.holds_state:
            donor = resolution.donors[str(self.me)]
            self._is_built = False
            return self._ask(Fetch(version=roster.version, step=resolution.step, donor=donor))
        if self.step < resolution.step:
            self._saving.missed()
            return [*self._ahead.absent(self.step, self.result, self._last), *self._commit("resolve")]
        effects: list[Effect] = []
        if self._entered != roster.version:
            self._entered = roster.version
            effects.append(Tell(message=Entered(member=self.me, version=roster.version, step=self.step)))
        joiners = self._to_serve(resolution)
        if joiners:
            self._served = roster.version
            return effects + self._ask(Serve(version=roster.version, step=self.step, joiners=joiners))
        if self.step >= self._last:
            return effects + self._farewell(roster)
        if roster.waits:
            return effects
        todo = sorted(lanes_in(self._holdings()[roster.index(self.me)]) - lanes_in(self.held))
        if todo:
            safe = [lane for lane in todo if lane not in roster.suspected(self.step)]
            if not safe and len(roster.seats) == 1:
                return effects  # it may kill this member, the last to hold the state: wait until another one is healed
            self.task = Task.LANE
            digests = bool(self._attached or self._unproven) and self._lane is None
            # A lane whose gradient leaves in buckets is never in one place to be digested.
            then = self._reduce(roster) if len(todo) == 1 and not digests else None
            return [*effects, Compute(step=self.step, lane=(safe or todo)[0], digests=digests, then=then)]
        if self.result is None:
            return effects + self._ask(self._reduce(roster))
        is_ready = self.next is not None and self._next_formed and not self._saving.is_owed
        row = Row(
            version=roster.version,
            step=self.step,
            digest=self.result.digest,
            stop=self._stop,
            ready=self.next.version if self.next is not None and is_ready else NO_VERSION,
            listener=self._next_listener(),
            save=self._saving.stated(self.step, self._last),
        )
        if row.ready != NO_VERSION and self.next is not None and self.next.seat(self.me) is None:
            self.handed = self.next.members
        effects += self._ahead.own(self.step, self.result, self._last, self._stop)
        return effects + self._ask(Bound(version=roster.version, row=row))

    def _reduce(self, roster: Roster) -> Reduce:
        return Reduce(version=roster.version, step=self.step, holdings=self._holdings())

    def _to_serve(self, resolution: Resolution) -> tuple[Member, ...]:
        if self.step != resolution.step or self._served == resolution.version:
            return ()
        mine = {joiner for joiner, donor in resolution.donors.items() if donor == self.me}
        return tuple(share.member for share in resolution.shares if str(share.member) in mine)

    def _holdings(self) -> Holdings:
        """What each member of the acting roster holds once its part of the current step is computed."""
        acting, resolution = self.acting, self._resolution
        if acting is None:
            raise Invariant(f"{self.me}: no resolution was ever adopted")
        if resolution is not None and resolution.step == self.step:
            parts = tuple((*share.keep, *map(leaf, share.compute)) for share in resolution.shares)
        else:
            skipped = acting.skipped(self.step)
            parts = tuple(tuple(leaf(lane) for lane in seat.lanes if lane not in skipped) for seat in acting.seats)
        # Asked for with every lane, and mostly the same step after step.
        if self._planned[0] != parts:
            self._planned = parts, tuple(tuple(sorted(settled(self._lanes, part))) for part in parts)
        return self._planned[1]

    def expected(self, count: int) -> tuple[Cell, ...]:
        """So many cells that this member will be asked for, soonest first, by the rosters it knows: a guess."""
        if self.acting is None or self.roster is None or self.task is Task.GONE or self.acting.seat(self.me) is None:
            return ()
        todo = lanes_in(self._holdings()[self.acting.index(self.me)]) - lanes_in(self.held)
        found = [Cell(self.step, lane) for lane in _calm_first(self.acting, self.step, todo)]
        seat, step = self.roster.seat(self.me), self.step + 1
        while seat is not None and seat.lanes and len(found) < count and step < self._last:
            lanes = set(seat.lanes) - self.roster.skipped(step)
            found += [Cell(step, lane) for lane in _calm_first(self.roster, step, lanes)]
            step += 1
        return tuple(found[:count])

    def _keep(self, lane: int) -> list[Effect]:
        held = self.held | {leaf(lane)}
        effects: list[Effect] = [Merge(parent=parent) for parent in merges(self._lanes, held)]
        self.held = settled(self._lanes, held)
        return effects

    def _farewell(self, roster: Roster) -> list[Effect]:
        """Past the last step: one more boundary, so that nobody exits before all have acknowledged the end."""
        effects: list[Effect] = []
        if not self._ending:
            self._ending = True
            effects.append(Tell(message=Ending(member=self.me, step=self.step)))
        row = Row(version=roster.version, step=self.step, digest=0, stop=True, save=self._saving.stated_last)
        return effects + self._ask(Bound(version=roster.version, row=row, farewell=True))

    def _bounded(self, rows: tuple[Row, ...], parted: str) -> list[Effect]:
        acting = self.acting
        if acting is None or self.task is Task.GONE:
            return []
        match boundary.verdict(acting, rows):
            case Corrupt(members=members) if self.me in members:
                self.task = Task.GONE
                return [Leave(why=f"the result of step {self.step} differs here from the others'", fault="corrupt")]
            case Corrupt(members=members):
                # The named leave; the survivors all hold the same result and will commit it in resolve.
                return self._complain(acting.version, f"corrupt: {', '.join(map(str, members))}") + self._settle()
            case Parted():
                self.task = Task.GONE
                why = f"before step {self.step} the replicas' states differ: {parted}. A local value steered the update"
                return [Leave(why=why, fault="divided")]
            case Pass(stop=stop, switch=switch, listener=listener) as verdict:
                if self.step >= self._last:
                    self.task = Task.GONE
                    self._left = Left(member=self.me, version=acting.version, step=self.step)
                    halt = acting.halt if acting.halt is not None and acting.halt.step <= self.step else None
                    leave = Leave(why=halt.why, fault="halt") if halt else Leave(why="the job is complete", fault=None)
                    return [Tell(message=self._left), *self._save_last(acting, verdict), leave]
                self._saving.decide(acting, verdict)
                if stop:
                    self._last = self.step + 1
                if switch is not None:
                    commit = self._commit("boundary", switch, verdict.save)
                    return self._switch(switch) + commit
                self.handed = ()
                snap = self._feed(acting, self._attached.pop(listener)) if listener in self._attached else []
                return snap + self._commit("boundary")
        raise AssertionError("unreachable")

    def _save_last(self, roster: Roster, verdict: Pass) -> list[Effect]:
        if verdict.save is not Urgency.LAST:
            return []
        return [Save(step=self.step, version=roster.version, members=roster.members, urgency=Urgency.LAST)]

    def _switch(self, version: Version) -> list[Effect]:
        """Everybody is ready for the planned roster, holds the same state, and nothing of the next step: go on under it."""
        roster = self.next
        if roster is None or roster.version != version:
            return []  # a newer roster came meanwhile: its resolve finds those who went on, and those who did not
        self.next = None
        if roster.seat(self.me) is None:
            self._is_leaving = True
            return []
        return self._enter(roster)

    def _enter(self, roster: Roster) -> list[Effect]:
        self._formed = roster.version if self._next_formed else self._formed
        self._next_formed = False
        self.roster = self.acting = roster
        self._feed_among(roster)
        self._attempt = roster.version
        self._resolution = resolve.begin(roster, self._lanes, self.step, self._last)
        assert roster.base is not None
        # The base's groups stay until the next roster: another member may not have read their last table yet.
        return [Abort(below=roster.base), self._adopt(roster, self._resolution)]

    # Feeding listeners

    def _next_listener(self) -> int:
        """The first in an order that is another at every step: one that not all have a line to must not keep the others
        waiting, and members who see not quite the same ones are to name the same."""
        waiting = self._attached if self._is_housed else ()
        return min(waiting, key=lambda number: mix(number, self.step), default=0)

    def _feed(self, roster: Roster, listener: Listener) -> list[Effect]:
        """From this step on, which is not committed yet: parameters are exactly those of `step`."""
        feed = Feed(listener=listener, feeder=self.me, feeders=roster.members)
        self._fed[listener] = feed
        self._unproven.add(listener)
        self._is_housed = False
        return [Snap(step=self.step, feed=feed)]

    def _feed_among(self, roster: Roster) -> None:
        """From here on: what was committed before was cut for all who fed then."""
        self._fed = {listener: feed.among(roster.members) for listener, feed in self._fed.items()}

    # Listening

    def _listen_told(self, roster: Roster) -> list[Effect]:
        if self.holds_state or self.task is Task.GONE or (self.roster is not None and self.roster.base is None):
            return []
        if self._overflowed is not None:
            return [Tell(message=self._overflowed)]
        if self._complaint is not None and self._complaint.version in self._current():
            return []  # a newer roster is the answer; the complaint is repeated with the push
        if self.listening is not None and self.listening.goes_on_with(roster):
            self.listening.roster = roster
            gone = tuple(peer for peer in self.listening.peers if roster.seat(peer) is None)
            hush: list[Effect] = [Hush(peers=gone)] if gone else []
            caught_up = CaughtUp(member=self.me, step=self.step)
            return [*hush, Tell(message=caught_up)] if self.listening.has_caught_up else hush
        return self._hear(roster) + self._settle()

    def _park_told(self) -> list[Effect]:
        if self.listening is None or self.roster is not None:
            return []  # a roster that counts on this joiner is newer than what it was told
        told = [Tell(message=CaughtUp(member=self.me, step=None))] if self.listening.has_caught_up else []
        self.listening = None
        return [*told, Hush()]

    def _hear(self, roster: Roster) -> list[Effect]:
        effects: list[Effect] = []
        if self.listening is not None and self.listening.has_caught_up:
            effects.append(Tell(message=CaughtUp(member=self.me, step=None)))
        if self.listening is not None and not set(self.listening.peers) <= set(roster.members):
            self._cut_off = 0  # some of those who were listened to are gone: that was no slowness of ours
        self._tries += 1
        self.listening = Listening(Listener(self.me, self._tries), roster)
        return [*effects, Hear(listener=self.listening.listener, roster=roster)]

    def _unheard(self, listener: Listener, why: str, named: bool) -> list[Effect]:
        if self.listening is None or listener != self.listening.listener:
            return []
        if self.listening.is_audited and self.roster is not None:
            # The members may have entered the roster that counts on this joiner, by a record that it has not got.
            self.listening = None
            return [Hush(), *self._complain(self.roster.version, "a line to a peer was lost before the roster was entered")]
        if named:
            self._cut_off += 1
        if self._cut_off >= _PATIENCE:
            return self._overran(listener, f"{self._cut_off} tries in vain, the last because {why[:_WHY]}")
        return self._hear(self.listening.roster)

    def _overran(self, listener: Listener, why: str) -> list[Effect]:
        if self.listening is None or listener != self.listening.listener:
            return []
        self.listening, self._overflowed = None, Overflowed(member=self.me, why=why)
        return [Hush(), Tell(message=self._overflowed)]

    def _listen(self, listening: Listening) -> list[Effect]:
        """The next thing for the idle training thread of a listener."""
        if listening.snapshot is None:
            return []
        if not listening.is_loaded:
            self._is_built = False
            return self._ask(Load(listener=listening.listener, step=listening.snapshot, donors=listening.donors))
        if not listening.has_caught_up and len(listening.records) <= 1:
            listening.has_caught_up = True  # the roster that counts on it is made while it computes its audit
            return [Tell(message=CaughtUp(member=self.me, step=self.step)), *self._listen(listening)]
        if not listening.records:
            return []
        heard = listening.records.popleft()
        record = heard.record
        if record.step != self.step:
            raise Invariant(f"{self.me} is at step {self.step}, but the next record is of step {record.step}")
        if listening.is_audited or record.lane is None:
            return self._replay(heard)
        self._auditing = listening, heard
        self.task = Task.LANE
        return [Compute(step=self.step, lane=record.lane.lane, digests=True, is_audit=True)]

    def _audited(self, listening: Listening, heard: Heard, digest: int | None) -> list[Effect]:
        record, self._auditing = heard.record, None
        assert record.lane is not None
        if digest != record.lane.digest:
            self.task = Task.GONE
            why = (
                f"the admission audit failed: lane {record.lane.lane} of step {record.step} has another gradient here than "
                "in the job. This host computes other bits: compare its software and hardware with the others'"
            )
            return [Hush(), Leave(why=why, fault="refused")]
        listening.is_audited = True
        return self._form_planned() + self._replay(heard)

    def _form_planned(self) -> list[Effect]:
        """A joiner forms the roster that counts on it once it has passed its audit: before that nobody can enter it."""
        roster, listening = self.roster, self.listening
        if roster is None or roster.base is None or listening is None or not listening.is_audited:
            return []
        return [Form(roster=roster)]

    def _replay(self, heard: Heard) -> list[Effect]:
        record = heard.record
        self._last = record.last or self._last
        commit = Commit(
            step=record.step,
            attempt=record.attempt,
            digest=record.digest,
            holdings=record.holdings,
            by="record",
            reporter=None,
            last=self._last,
            gradient=heard.gradient,
        )
        self.step += 1
        self.task = Task.AWAY
        effects: list[Effect] = []
        if self._origin is not None and self.step == self._origin.through:
            self.holds_state = True
        if self.listening is not None and self.roster is not None and record.switch == self.roster.version:
            self.listening, self.holds_state = None, True
            self._saving.wish(record.save)
            effects = [*self._enter(self.roster), Hush()]
        return [*effects, commit]

    def _commit(self, by: str, switch: Version | None = None, save: Urgency = Urgency.NONE) -> list[Effect]:
        result, resolution = self.result, self._resolution
        if result is None or resolution is None:
            raise Invariant(f"{self.me}: step {self.step} was decided, but its result is not here")
        effect = Commit(
            step=self.step,
            attempt=result.attempt,
            digest=result.digest,
            holdings=result.holdings,
            by=by,
            reporter=resolution.reporter if by == "boundary" else resolution.late,
            last=self._last,
            switch=switch,
            save=save,
            lane=self._lane,
            feeds=tuple(self._fed.values()),
        )
        if self._lane is not None:
            self._unproven.clear()
        self.step += 1
        self.held, self.result, self._lane = frozenset(), None, None
        if self.acting is not None:
            self._attempt = self.acting.version
        self.task = Task.AWAY
        return [effect]


def _calm_first(roster: Roster, step: int, lanes: Iterable[int]) -> list[int]:
    """In the order in which they are computed: suspects last."""
    return sorted(lanes, key=lambda lane: (lane in roster.suspected(step), lane))


def names_member(message: FromMember) -> Member:
    """Whom a member's message speaks for: the connection it came on must belong to it."""
    return message.member
