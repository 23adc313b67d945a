"""A worker's process: carries out what its Attendance decides, with symbols instead of tensors.

The training thread does one thing at a time; the session thread speaks with the coordinator. Both stop while the process is
hung, and what happened meanwhile happens when it resumes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from regrow.core.attendance import Task
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
    Log,
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
    DismissalCame,
    Event,
    LaneDone,
    ListenTold,
    ParkTold,
    RosterPushed,
    SaveWished,
    StepEntered,
    StopAsked,
)
from regrow.core.lanes import Cell, Node, children, leaf
from regrow.core.messages import Listen, Park, Push, Raised, Refuse, SaveState, Stop, Timed, ToMember
from regrow.core.records import (
    Committed,
    Departed,
    LaneComputed,
    RosterAdopted,
    RosterReceived,
    SnapshotLoaded,
    StateFetched,
    StateRecalled,
    StateUnique,
)
from regrow.core.roster import Member, Version
from regrow.core.saves import Urgency
from regrow.core.speeds import Gauge
from regrow.sim import mathematics
from regrow.sim.grades import Grade, grade
from regrow.sim.groups import Group
from regrow.sim.slot import Slot
from regrow.sim.wire import Wire

if TYPE_CHECKING:
    from regrow.sim.world import World

_LANE_SAMPLES = 4
_FLUSH_S = 5.0
_LAG = 10.0


class Process:
    """One incarnation of one replica."""

    def __init__(self, world: "World", member: Member) -> None:
        self.world = world
        self.member = member
        self.name = str(member)
        self.alive = True
        self.hung = False
        self.exited_clean = self.was_struck = False
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        plan = world.plan
        self.attendance = world.rules.attendance(
            member, lanes=plan.lanes, steps=plan.steps, saves=plan.saves, logs=plan.logs
        )
        self.wire = Wire(self)
        self.groups: list[Group] = []
        self.slot: Slot | None = None
        self.lane: Cell | None = None
        """The one it is in."""
        self.task: str | None = "script"
        """What the training thread was asked to do; None when it is idle."""
        self.state: int | None = world.reference.states[0]
        self.line = world.reference
        """What its state must be at each step."""
        self.owes: int | None = None
        """The step of the job's last save, before which is whole it may not exit."""
        self.partials: dict[Node, int] = {}
        self.result: tuple[int, Version, int] | None = None
        self.witnesses = 0
        """Members that held state in the newest resolve table it saw."""
        self.is_faulty = False
        """Its memory will flip a bit of the next result."""
        self.gauge = Gauge(least=2)
        self.worked_s: list[float] = []
        """How long the lanes of this step took."""
        self.is_dismissed = False
        self.lags_until_s = 0.0
        self.is_odd = False
        """Its host computes other bits than the others': whatever it computes as a joiner, and after it has joined."""
        self.parted: str | None = None
        """How it left: "well", or the fault."""

    @property
    def grade(self) -> Grade | None:
        return grade(self.attendance)

    # Life

    def boot(self) -> None:
        """The script has reached its first `job.steps`."""
        self.world.logs.open(self)
        self.wire.connect()
        self._beat()
        self.answer(StepEntered())

    def die(self, how: str, clean: bool = False, struck: bool = False) -> None:
        if not self.alive:
            return
        self.world.story.note(self.name, f"process ends: {how}")
        if not clean and self.parted is None:
            self.world.sights.lost(self)
        self.alive = self.hung = False
        self.exited_clean, self.was_struck = clean, struck
        self.wire.cut()
        self.world.groups.leave(self)
        self.world.feeds.leave(self)
        self.world.vault.leave(self)
        self.world.agent.reap(self, how, clean, struck)

    def hang(self, span_s: float) -> None:
        if self.alive and not self.hung:
            self.hung = True
            self.world.timeline.after(span_s, None, self._resume)

    def lag(self, span_s: float) -> None:
        """Its host is busy with something else: the user's code takes long."""
        self.lags_until_s = self.world.timeline.now + span_s

    def work_s(self) -> float:
        return self.world.chance.work_s() * (_LAG if self.world.timeline.now < self.lags_until_s else 1.0)

    def dismiss(self, within_s: float) -> None:
        """SIGTERM: it hands over, or ends when its time is up."""
        if self.alive and self.parted is None:
            self.is_dismissed = True
            self.world.referee.stops += 1  # when nobody else holds the state
            self.feed(DismissalCame(within_s=within_s))
            self.world.timeline.after(within_s, None, self._time_out)

    def _time_out(self) -> None:
        if self.alive:
            self.world.referee.late_kills += self.attendance.task is Task.GONE
            self.die("killed by signal 15")

    def _resume(self) -> None:
        if not self.alive:
            return
        self.hung = False
        self.world.story.note(self.name, "resumes")
        backlog, self.backlog = self.backlog, []
        for call, args in backlog:
            self.world.timeline.after(0.0, self, call, *args)

    def _beat(self) -> None:
        self.wire.beat()
        self.world.timeline.after(1.5, self, self._beat)

    # Events in

    def receive(self, message: ToMember) -> None:
        match message:
            case Push(roster=roster):
                is_news = roster.version > self.attendance.seen
                self.feed(RosterPushed(roster=roster))
                goes_on = roster.base is None and self.attendance.task is not Task.GONE
                if is_news and roster.seat(self.member) is None and goes_on:
                    self.world.referee.fail("fenced", f"{self.name} goes on, though {roster.version} has no seat for it")
            case Listen(roster=roster):
                self.feed(ListenTold(roster=roster))
            case Park():
                self.feed(ParkTold())
            case Stop():
                self.feed(StopAsked())
            case SaveState():
                self.feed(SaveWished(urgency=Urgency.ASKED))
            case Refuse(why=why):
                self.world.story.note(self.name, f"refused: {why}")
                if self.parted == "well":
                    self.heard_left()
                elif self.parted is None:
                    self._exit("refused")

    def answer(self, event: Event) -> None:
        """The training thread has done what it was asked."""
        if self.task is None:
            self.world.referee.fail("one-task", f"{self.name} answers {event}, but was asked nothing")
        if self.task == "raised":
            return  # the user's exception is on its way out; nothing more is answered
        self.task, self.slot = None, None
        self.feed(event)

    def feed(self, event: Event) -> None:
        world = self.world
        if isinstance(event, SaveWished):
            world.custody.wished(self)
        world.story.note(self.name, event)
        try:
            effects = self.attendance.handle(event)
        except Invariant as broken:
            world.referee.fail("invariant", f"{self.name}: {broken}")
        world.faults.passed(type(event).__name__, self)
        for effect in effects:
            if not self.alive:
                return
            world.story.note(self.name, effect)
            self._do(effect)
            world.faults.passed(type(effect).__name__, self)

    # Effects out

    def _do(self, effect: Effect) -> None:
        world = self.world
        match effect:
            case Abort(below=below):
                world.groups.abort(self, below)
            case Form(roster=roster):
                world.referee.fact(self.name, RosterReceived(version=roster.version, cause=roster.cause))
                world.groups.form(self, roster)
            case Tell(message=message):
                self.wire.send(message)
            case Hear():
                world.feeds.hear(self, effect)
            case Hush(peers=peers):
                world.feeds.hush(self, peers)
            case Snap(step=step, feed=feed):
                world.referee.state(self, step)
                world.feeds.snap(self, step, feed)
            case Save():
                world.custody.saved(self, effect)
                world.vault.save(self, effect)
            case Recall():
                self._ask(effect)
                world.vault.recall(self, effect)
            case Log():
                world.logs.write(self, effect)
            case Replay():
                self._ask(effect)
                world.logs.replay(self, effect)
            case Load():
                self._ask(effect)
                world.feeds.load(self, effect)
            case Exchange() | Reduce() | Bound():
                self._ask(effect)
                if isinstance(effect, Exchange):
                    world.custody.stated(self, effect)
                world.groups.arrive(self, effect)
            case Fetch():
                self._ask(effect)
                world.transfers.fetch(self, effect)
            case Serve(step=step):
                self._ask(effect)
                world.referee.state(self, step)
                world.transfers.serve(self, effect)
            case Compute(step=step, lane=lane):
                self._ask(effect)
                world.referee.state(self, step)
                self.lane = Cell(step, lane)
                world.referee.computes(self, effect)
                took_s = self.work_s() * (4.0 if self.member.replica == world.plan.slow else 1.0)
                self.worked_s.append(took_s)
                world.timeline.after(took_s, self, self._computed, effect)
            case Merge(parent=parent):
                left, right = children(parent)
                self.partials[parent] = mathematics.added(self.partials.pop(left), self.partials.pop(right))
            case Adopt():
                self._adopt(effect)
            case Commit():
                self._ask(effect)
                self._commit(effect)
            case Leave():
                self._leave(effect)

    def _ask(self, effect: Effect) -> None:
        if self.task is not None:
            self.world.referee.fail("one-task", f"{self.name} is asked for {effect}, but is still in {self.task}")
        self.task = type(effect).__name__

    def _computed(self, effect: Compute) -> None:
        step, lane = effect.step, effect.lane
        if self.task == "raised":
            return
        if self.lane == self.world.plan.poison:
            self.die("segfaulted")
            return
        self.lane = None
        if self.state is None:
            self.world.referee.fail("held", f"{self.name} computes a lane without a state")
        gradient = mathematics.lane_gradient(step, lane, self.state) ^ self.is_odd
        digest = mathematics.digest(gradient) if effect.digests else None
        if not effect.is_audit:
            start = (step * self.world.plan.lanes + lane) * _LANE_SAMPLES
            computed = LaneComputed(step=step, lane=lane, start=start, stop=start + _LANE_SAMPLES)
            self.world.referee.fact(self.name, computed)
            self.partials[leaf(lane)] = gradient
        self.answer(LaneDone(lane=lane, digest=digest))

    def _adopt(self, effect: Adopt) -> None:
        resolution = effect.resolution
        share = resolution.share(self.member)
        for node in effect.drop:
            if self.partials.pop(node, None) is None:
                self.world.referee.fail("held", f"{self.name} is told to drop {node}, which it does not hold")
        fact = RosterAdopted(
            version=resolution.version,
            step=resolution.step,
            keep=share.keep,
            compute=share.compute,
            drop=effect.drop,
            why=resolution.why,
        )
        self.world.referee.fact(self.name, fact)
        if effect.is_guarded:
            self.world.sights.see("somebody was left alone with the state")
            self.world.referee.fact(self.name, StateUnique(version=resolution.version, step=resolution.step))

    def keep_result(self, step: int, attempt: Version, gradient: int) -> None:
        self.result = (step, attempt, gradient)

    def suffer(self, gradient: int) -> int:
        """The result as it arrives in this process's memory."""
        if not self.is_faulty:
            return gradient
        self.is_faulty = False
        self.world.referee.corruptions += 1
        return gradient ^ (1 << self.world.referee.corruptions)  # never the same wrong bits twice

    def _commit(self, effect: Commit) -> None:
        if effect.by == "record":
            self.keep_result(effect.step, effect.attempt, effect.gradient)
            if self.attendance.holds_state:
                self.world.sights.see("a join finished")
        result, self.result = self.result, None
        is_alone = self.witnesses == 1 if effect.by == "resolve" else len(effect.holdings) == 1
        if effect.by == "record":
            is_alone |= self.world.logs.is_by_one(effect.step, effect.attempt, effect.digest)
        if result is None or result[:2] != (effect.step, effect.attempt):
            self.world.referee.fail("result", f"{self.name} commits {effect.step} of {effect.attempt}, it holds {result}")
            return
        self.line = self.world.line(effect.attempt)
        self.world.referee.committed(self, effect, is_alone)
        self.world.custody.logged(self, effect)
        fact = Committed(
            step=effect.step,
            attempt=effect.attempt,
            digest=effect.digest,
            holdings=effect.holdings,
            by=effect.by,
            loss=None,
        )
        self.world.referee.fact(self.name, fact)
        lane_s = self.gauge.computed(len(self.worked_s), sum(self.worked_s))
        self.worked_s.clear()
        if lane_s is not None and self.world.plan.slow:
            self.wire.send(Timed(member=self.member, lane_s=lane_s, step=effect.step))
        self.world.feeds.send(self, effect, result[2])
        self.partials.clear()
        self.world.timeline.after(self.work_s(), self, self._update, effect.step, result[2])

    def _update(self, step: int, gradient: int) -> None:
        """The user's optimizer step."""
        if self.task == "raised":
            return
        if self.state is None:
            self.world.referee.fail("held", f"{self.name} steps its optimizer without a state")
        self.state = mathematics.stepped(self.state, gradient)
        self.world.referee.state(self, step + 1)
        self.answer(StepEntered())

    def load(
        self, value: int | None, step: int, fact: StateFetched | SnapshotLoaded | StateRecalled, line: mathematics.Reference
    ) -> None:
        self.state, self.line = value, line
        self.partials.clear()
        if not isinstance(fact, SnapshotLoaded):
            self.is_odd = False  # who is healed, or founds, is not audited: nothing is promised of such a host
        if isinstance(fact, StateFetched):
            self.world.sights.see("a joiner was healed")
        self.world.referee.fact(self.name, fact)
        self.world.referee.state(self, step)

    def _leave(self, effect: Leave) -> None:
        if effect.fault in (None, "halt"):
            self.parted = "well"
            step = self.attendance.step
            self.world.referee.state(self, step)
            fact = Departed(step=step, why=effect.why, fault=effect.fault, digest=str(self.state))
            self.world.referee.fact(self.name, fact)
            # It exits once the coordinator knows, or after it has waited long enough for that.
            self.world.timeline.after(_FLUSH_S, self, self.heard_left)
        elif effect.fault == "left":
            fact = Departed(step=self.attendance.step, why=effect.why, fault=effect.fault, digest=None)
            self.world.referee.fact(self.name, fact)
            self._exit(effect.fault, "left as planned")
        else:
            self._exit(effect.fault)

    def _exit(self, fault: str, how: str = "") -> None:
        self.parted = fault
        if fault == "spent":
            self.world.sights.see("a founder was spent")
        if fault == "refused" and self.is_odd:
            self.world.sights.see("a joiner with other bits was refused")
        self.world.timeline.after(self.world.chance.soon_s(), self, self.die, how or f"exits: {fault}")

    def heard_left(self) -> None:
        """The coordinator knows that this member has left: it may exit once the script is done."""
        if self.owes is not None:
            self.world.timeline.after(1.0, self, self.heard_left)
        elif self.alive and self.parted == "well":
            self.parted = "well, and the coordinator knows"
            self.world.timeline.after(self.world.chance.work_s(), self, self.die, "exits after its last step", True)

    def raise_error(self, scope: str, place: str) -> None:
        """The user's code raises: the coordinator is told, then the process exits."""
        if self.task not in ("Compute", "Commit", "script") or self.parted is not None:
            return
        self.task = "raised"
        told = Raised(
            member=self.member,
            kind="ValueError",
            place=place,
            traceback="",
            step=self.attendance.step,
            lane=self.lane.lane if self.lane else None,
            scope=scope,
        )
        self.world.referee.raised += 1
        self.wire.send(told)
        self.world.timeline.after(self.world.chance.soon_s(), self, self.die, "raised ValueError")
