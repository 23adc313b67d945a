"""The coordinator: who takes part. It never decides whether a step commits, and a healthy step does not need it.

Rules (docs/protocol.md, invariants M1 to M7):
- Versions only grow. The term is raised and made durable before anything else; each roster is made durable before it is
  pushed.
- The first roster waits for every replica that can still come; its members are founders, their initial state is step 0.
- Whoever is proven dead, said to hang by its agent, or silent for a lease, is left out by a new roster at once. Nobody is
  evicted for its silence within one lease of the coordinator's start, nor at all while nobody else is heard who holds the
  state: it may be the coordinator that is cut off. A member without a seat never gets one back: it returns as a new
  incarnation.
- A joiner listens until it has caught up, and is seated by a planned roster, once every member has entered the current one:
  one change is digested before the next. One that cannot keep up, or that the members wait for, is seated at once.
- Whoever leaves as planned is left out by a planned roster. A failure meanwhile is answered first, and the wish is taken up
  again after it. The members never leave all at once: somebody who holds the state stays.
- While fewer work than the job needs its roster waits: nobody computes, and whoever comes is seated at once; though not
  all have entered it, after a lease.
- While a planned roster is not entered by all, whoever sits in it or in its base may be needed to testify: a loss is
  answered by a roster of both.
- Testimony: when no member of the current roster is left, or its members testify that none holds the state, the job
  ends. It never starts again from initial weights. With a vault it is founded again, from a saved state and under a new
  term, once every member is proven dead (S5), as long as it comes further now and then.
- A lane that somebody died in is suspect: its roster has it computed last, by one member, while another holds the state.
  With a vault one kill that nothing explains makes none suspect.
  Enough different replicas dead in it make it poison: it is left out, or the job ends before its step, in good order.
- So does a job with a vault that cannot go on, by its script's fault or for lack of replicas, while anybody holds its state.
- Once a member has committed the last step nobody is replaced. Whoever has left saw every row of the last boundary; those
  who have not left soon after have lost theirs, and meet again without it.
- What was decided and may not have been heard outlives a coordinator: who is to be killed, a wish to stop, the end.
- With no line to the agent and no word of any member for a lease there is nobody left to coordinate: the job ends. That
  end is a guess, not a proof, so it is not made durable.
"""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from regrow.core.attendance import names_member
from regrow.core.budget import Budget, Exhausted
from regrow.core.comebacks import Comebacks, NoProgress
from regrow.core.completion import has_more
from regrow.core.lanes import Cell
from regrow.core.membership_config import MembershipConfig as MembershipConfig
from regrow.core.membership_effects import (
    End,
    Founded,
    Granted,
    Kill,
    Lost,
    Made,
    MembershipEffect,
    Persist,
    Poisoned,
    Saved,
    Seek,
    Send,
    Spared,
    Start,
    Unfounded,
    WishTold,
)
from regrow.core.membership_events import (
    AgentCame,
    AgentGone,
    Died,
    Heard,
    Hung,
    MembershipEvent,
    Opened,
    OriginCame,
    Stalled,
    StopRequested,
    Ticked,
    WishCame,
)
from regrow.core.messages import (
    Beat,
    CaughtUp,
    Complain,
    Contract,
    Dismissed,
    Ending,
    Entered,
    FromMember,
    Join,
    Left,
    Listen,
    Missed,
    Overflowed,
    Park,
    Push,
    Raised,
    Refuse,
    Released,
    SaveState,
    StatelessFound,
    Stop,
    Timed,
)
from regrow.core.origin import Founding, Origin, data_from, differences, impossible
from regrow.core.progress import Place
from regrow.core.raises import Raises, ReplicaUnfit, ScriptBroken
from regrow.core.roster import NO_VERSION, Endpoint, Halt, Member, Present, Roster, Seat, Version, at_home, compose
from regrow.core.speeds import Speeds
from regrow.core.staff import Staff, found
from regrow.core.suspicion import Suspicion
from regrow.core.wishes import Limits, Wish, is_met, overtaken, refusal

_WEIGHED_S = 1.0
"""So often it is asked whether lanes should be dealt anew."""


class _Presence(msgspec.Struct, kw_only=True):
    """A joined member, as the coordinator knows it."""

    endpoint: Endpoint
    founder: bool
    heard_s: float
    entered: Version = NO_VERSION
    left: Version | None = None
    told: Version = NO_VERSION
    """The roster whose members it was told to listen to."""
    listens: bool = False
    has_caught_up: bool = False
    overflowed: str = ""
    """Why the members have to wait for it."""
    is_released: bool = False
    """The others went on under a planned roster without it."""
    parts_by_s: float | None = None
    """It was told to end, and should have handed over by then."""

    @property
    def holds_state(self) -> bool:
        return self.founder or self.entered != NO_VERSION


class Membership:
    """`handle(event) -> effects`; time arrives inside events."""

    def __init__(self, config: MembershipConfig, saved: Saved | None = None) -> None:
        self._config = config
        self._term = (saved.term if saved else 0) + 1
        self._n = 0
        self.roster = saved.roster if saved else None
        self._base = saved.base if saved else None
        """The roster that a planned one is entered from, until all have entered it."""
        self._floor = saved.floor if saved else 0
        self._founding = saved.founding if saved else Founding(seeks=config.resumes)
        self._comebacks = saved.comebacks if saved else Comebacks()
        self._lives: dict[str, int] = dict(saved.lives) if saved else {}
        self.staff = saved.staff if saved and saved.staff else found(config.replicas, config.spares)
        self._speeds = Speeds(config.speeds, saved.weights if saved else None)
        self._wishes = saved.wishes if saved else ()
        self._wished = saved.wished if saved else 0
        self._sought: int | None = None
        """The term under which an origin was asked for last."""
        self._resumed = saved is not None and bool(saved.lives)
        self._present: dict[Member, _Presence] = {}
        self._awaited: set[Member] = set(self.roster.members) if self.roster else set()
        """Members of the newest roster that have not said that they entered it."""
        self._gone: set[Member] = set(saved.doomed) if saved else set()
        """Dead or evicted members: never seated again."""
        self._dead: set[Member] = set()
        self._spared: set[Member] = set()
        """Hung members about whom it was said that they are left alone."""
        self._raises = Raises(config.budget.window_s)
        self._budget = Budget(config.budget, saved.spent if saved else None)
        self._contract: Contract | None = None
        self._lanes = config.lanes or (saved.lanes if saved else None)
        self._opened_s = 0.0
        """When it started, or went on after it had itself been stopped: nobody is evicted for a lease."""
        self._ticked_s = 0.0
        self._agentless_s: float | None = None
        """Since when there is no line to the agent; None while there is one."""
        self._heard_s = 0.0
        self._weighed_s = 0.0
        """When it was last asked whether lanes should be dealt anew."""
        self._made_s = 0.0
        """When it made the newest roster."""
        self._lapse_s = 0.0
        """Until then nobody's lease can lapse: it was looked at every member, and silences only begin anew."""
        self._joined: set[Member] = set()
        self._now_s = 0.0
        self._complained_s: float | None = None
        self._parted_s: float | None = None
        """Since when one that has handed over is gone, though not all have gone on yet: they may wait for it in vain."""
        self._stopping = saved.stopping if saved else False
        self._ending = saved.ending if saved else False
        self._left_well = False
        self._reached = 0
        """Every step below this one is committed, by where the dead were seen last; for people."""
        self._failed_late: list[str] = []
        """Who died after its last step, and how."""
        self._struck_late = True
        """All of them by a SIGKILL that nothing explains: with another try they may get to the end."""
        self._skips: set[Cell] = set(saved.skips) if saved else set()
        self._suspicion = Suspicion(config.poison_after, saved.suspects if saved else ())
        self._halt = saved.halt if saved else None
        self._over = False
        self._ended = saved.end if saved else None

    @property
    def version(self) -> Version:
        return self.roster.version if self.roster else NO_VERSION

    def handle(self, event: MembershipEvent) -> list[MembershipEffect]:
        if self._over:
            return []
        self._now_s = event.now
        match event:
            case Opened(now=now):
                return self._open(now)
            case Heard(now=now, message=message):
                return self._hear(now, message)
            case Died():
                return self._died(event)
            case AgentGone(now=now):
                self._agentless_s = now
                return []
            case AgentCame():
                self._agentless_s = None
                return []
            case Hung():
                return self._hung(event)
            case Stalled(why=why):
                return self._issue("stalled", why)
            case OriginCame():
                return self._origin_came(event)
            case Ticked(now=now):
                return self._expire(now)
            case StopRequested():
                return self._stop()
            case WishCame(wish=wish, ticket=ticket):
                return self._wish(wish, ticket)
        assert_never(event)

    # Starting

    def _open(self, now: float) -> list[MembershipEffect]:
        self._opened_s = self._heard_s = self._ticked_s = now
        if self._ended is not None:
            self._over = True
            return [self._persist(), self._ended]
        if not self._resumed:
            self._lives = dict.fromkeys(self.staff.names, 0)
        # After a restart some of these may never have been started: an agent starts each incarnation at most once.
        starts = [Member(replica, self._lives[replica]) for replica in self.staff.runs]
        return [
            self._persist(),
            *(Start(member=member, delay_s=0.0, why="the job starts") for member in starts),
            *(Kill(member=member, why="an earlier coordinator gave it up") for member in sorted(self._gone)),
            *self._seek(),
        ]

    def _seek(self) -> list[MembershipEffect]:
        """The term names the question: each coordinator, and each founding, has one of its own."""
        if not self._founding.seeks or not self._may_seek:
            return []
        self._sought = self._term
        step = self._config.resume_step if self._founding.reached is None else None
        return [Seek(number=self._term, step=step)]

    @property
    def _may_seek(self) -> bool:
        """What is saved does not change any more: one that was evicted and lives on may commit another step."""
        return not self._config.logs or self._founding.reached is None or self._is_proven

    @property
    def _is_proven(self) -> bool:
        """Is everybody dead who was ever given up?"""
        return not self._gone - self._dead and self._has_buried()

    def _origin_came(self, came: OriginCame) -> list[MembershipEffect]:
        founding = self._founding
        if not founding.seeks or came.number != self._term:
            return []
        if came.since.term >= self._term:  # of another run: what is committed from here on follows it
            self._term = came.since.term + 1
            return [self._persist(), *self._seek()]
        self._founding = msgspec.structs.replace(
            founding, seeks=False, origin=came.origin, mathematics=came.mathematics, is_final=came.is_final
        )
        if came.origin is None and founding.reached is not None:
            return self._end("state-lost", f"every replica is lost, and no saved state is whole: {came.why}")
        if came.origin is None and self._config.resume_step is not None:
            return self._end("failed", f"cannot resume from step {self._config.resume_step}: {came.why}")
        if came.origin is not None and self._forgets(came.origin):
            why = f"the logs hold the first {came.origin.through} steps, the job had committed {founding.reached}"
            return self._end("state-lost", f"every replica is lost, and no saved state is whole: {why}")
        return [self._persist(), *self._found("origin")]

    def _forgets(self, origin: Origin) -> bool:
        """Would the job begin again from its initial weights, and lose what it is known to have committed?"""
        return origin.is_beginning and origin.through < (self._founding.reached or 0)

    def _persist(self) -> Persist:
        return Persist(
            saved=Saved(
                term=self._term,
                roster=self.roster,
                base=self._base,
                lives=dict(self._lives),
                floor=self._floor,
                founding=self._founding,
                comebacks=self._comebacks,
                staff=self.staff,
                wishes=self._wishes,
                wished=self._wished,
                weights=self._speeds.weights,
                ending=self._ending,
                lanes=self._lanes,
                spent=self._budget.spent,
                skips=tuple(sorted(self._skips)),
                suspects=self._suspicion.suspects,
                halt=self._halt,
                stopping=self._stopping,
                doomed=tuple(sorted(self._gone - self._dead)),
                end=self._ended,
            )
        )

    def _stop(self) -> list[MembershipEffect]:
        if self._stopping:
            return []
        self._stopping = True
        # Said before it is durable: a full disk must not keep a job from being stopped, and nothing unsafe follows from it.
        said: list[MembershipEffect] = [Send(member=member, message=Stop()) for member in self._present]
        if self.roster is not None and self.roster.waits:
            return said + self._issue("stop", "the job stops, and waits for nobody")
        return [*said, self._persist()]

    def _wish(self, wish: Wish, ticket: int) -> list[MembershipEffect]:
        config, staff = self._config, self.staff
        if wish.kind == "save":
            return self._wish_save(wish, ticket)
        if self._ending or self._stopping or self._halt is not None:
            why: str | None = "the job is ending: nobody comes or goes any more"
        elif self.roster is None:
            why = "the job has not begun: ask again once it trains, or start it with another --replicas"
        else:
            why = refusal(wish, staff, Limits(least=config.min_replicas, most=config.max_replicas))
        if why is not None or self.roster is None:
            return [WishTold(wish=wish, state="refused", why=why or "", ticket=ticket)]
        there = self._able(self.roster.members)
        match wish.kind:
            case "scale":
                staff = staff.scaled(wish.replicas, there)
                staff = staff.trimmed(config.spares, there)
                staff = staff.hired(staff.target + config.spares + len(staff.moving) - len(staff.stays))
            case "leave":
                staff = staff.without(wish.replica)
            case "migrate":
                staff = staff.moved(wish.replica).hired(1)
        fresh = staff.names[len(self.staff.names) :]
        self.staff = staff
        self._lives.update(dict.fromkeys(fresh, 0))
        self._wished += 1
        wish = msgspec.structs.replace(wish, number=self._wished)
        self._wishes = (*self._wishes, wish)
        starts = [Start(member=Member(replica, 0), delay_s=0.0, why=str(wish)) for replica in fresh]
        told = WishTold(wish=wish, state="granted", ticket=ticket)
        return [self._persist(), told, *starts, *self._admit(f"wish-{wish.number}")]

    def _wish_save(self, wish: Wish, ticket: int) -> list[MembershipEffect]:
        """Nothing to remember: whoever asked looks for the save, and asks again."""
        if not self._config.keeps:
            why = "the job keeps no state: start it with `regrow run --checkpoint URL`"
            return [WishTold(wish=wish, state="refused", why=why, ticket=ticket)]
        # Nobody without a seat: a wish is kept until a boundary decides a save, and theirs would come long after this one.
        asked = [member for member in self._present if self.roster is None or self._sits(member)]
        sends = [Send(member=member, message=SaveState()) for member in asked]
        return [WishTold(wish=wish, state="granted", ticket=ticket), *sends]

    def _dismiss(self, member: Member, presence: _Presence, within_s: float) -> list[MembershipEffect]:
        """It cannot be refused. Its replica has another life when this one is gone, as after any other end."""
        if presence.parts_by_s is None:
            presence.parts_by_s = self._now_s + within_s / 2
        if self.roster is None or presence.left is not None or presence.is_released:
            return []
        if not self._sits(member):
            self._gone.add(member)
            del self._present[member]
            return [self._persist(), Kill(member=member, why="it was told to end")]
        return self._admit(f"dismissed-{member}") + self._stop_in_time(self._now_s)

    def _stop_in_time(self, now: float) -> list[MembershipEffect]:
        """All who hold the state were told to end. Somebody may still come to whom they hand over; half of their time is
        kept for a stop, which takes a boundary."""
        seated = [member for member in self._seated() if member not in self._gone]
        if self._stopping or self._ending or not seated or not all(map(self._is_dismissed, seated)):
            return []
        by_s = min(self._present[member].parts_by_s or now for member in seated)
        return self._stop() if now > by_s or not self._may_come(seated) else []

    def _there(self) -> frozenset[str]:
        """The replicas that have a seat."""
        return frozenset(member.replica for member in self.roster.members) if self.roster is not None else frozenset()

    def _able(self, members: Iterable[Member]) -> frozenset[str]:
        """Their replicas, but for those that were told to end."""
        return frozenset(member.replica for member in members if not self._is_dismissed(member))

    def _is_dismissed(self, member: Member) -> bool:
        return (presence := self._present.get(member)) is not None and presence.parts_by_s is not None

    # Messages

    def _hear(self, now: float, message: FromMember) -> list[MembershipEffect]:
        member = names_member(message)
        self._heard_s = now
        presence = self._present.get(member)
        if presence is not None:
            presence.heard_s = now
        match message:
            case Join():
                return self._join(now, message)
            case Raised():
                return self._raise(now, message)
            case Beat():
                return []
            case Missed():
                return [Send(member=member, message=Push(roster=self.roster))] if self.roster is not None else []
        if presence is None:
            return []  # evicted or dead meanwhile: what it says no longer counts
        match message:
            case Entered(version=version, step=step):
                self._enter(member, presence, version)
                self._floor = max(self._floor, step)
                return self._admit(f"entered-{member}")
            case CaughtUp(step=at):
                presence.has_caught_up = at is not None
                return self._admit(f"caught-up-{member}")
            case Overflowed(why=why):
                presence.overflowed = why
                if self._sits(member):
                    # The others may have entered the roster that counts on it, by a record that it has dropped.
                    return self._issue(f"overflowed-{member}", f"{member} cannot keep up: {why}")
                return self._admit(f"overflowed-{member}")
            case Released(version=version):
                presence.is_released = True
                if self._sits(member) and version < self.version and (self._base is None or version != self._base.version):
                    return self._issue(f"released-{member}", f"{member} has handed over")
                return []
            case Dismissed(within_s=within_s):
                return self._dismiss(member, presence, within_s)
            case Timed(lane_s=lane_s, step=step):
                self._speeds.hear(member.replica, lane_s, step)
                return []  # thousands say so, each for itself: they are looked at together
            case Complain(version=version):
                is_current = version == self.version or (self._base is not None and version == self._base.version)
                if is_current and self._complained_s is None:
                    self._complained_s = now
                return []
            case StatelessFound(version=version, why=why):
                # A joiner seated while the others were leaving finds nobody: the end was reached without it.
                return self._stateless(why) if version == self.version and not self._ending else []
            case Ending():
                return self._end_begins()
            case Left(version=version):
                presence.left = version
                effects = self._end_begins()
                self._await_others(now)
                # A newer roster still counts on a member that has left: its groups can never form. The base of a planned one
                # leaves together; those who do not are given a roster of their own in a moment.
                others = () if self._base is None or version != self._base.version else self._base.members
                is_together = any((p := self._present.get(m)) is not None and p.left is None for m in others)
                is_counted_on = self.roster is not None and self.roster.seat(member) is not None
                if version < self.version and is_counted_on and not is_together:
                    effects += self._issue(f"left-{member}", f"{member} has left")
                return effects
        assert_never(message)

    def _join(self, now: float, join: Join) -> list[MembershipEffect]:
        member = join.member
        self._joined.add(member)
        seat = self._seat(member)
        # Evictions are not remembered across a restart, but who has seen a roster and has no seat was left out of one.
        was_left_out = self.roster is not None and seat is None and join.seen != NO_VERSION
        if self.roster is None and self._founding.reached is not None and join.entered != NO_VERSION:
            was_left_out = True  # it has handed over, and is on its way out
            self._gone.add(member)
        if member in self._gone or was_left_out or self._lives.get(member.replica) != member.incarnation:
            return [Send(member=member, message=Refuse(why=f"the job goes on without {member}", is_lost=False))]
        asks: list[MembershipEffect] = []
        if join.seen.term > self._term:
            self._term = join.seen.term + 1
            asks = self._seek()  # the term names the question
        if self._contract is None:
            self._contract, self._lanes = join.contract, join.lanes
            self._skips.update(join.skips)
        difference = self._contract.difference(join.contract)
        if difference is not None:
            return asks + self._refuse(member, difference)
        if member not in self._present:
            founder = seat.founder if seat else False
            self._present[member] = _Presence(endpoint=join.endpoint, founder=founder, heard_s=now)
        self._enter(member, self._present[member], join.entered)
        self._present[member].told = NO_VERSION  # it may have been lost, or the answer to it
        self._present[member].listens = join.listens
        effects = asks
        if self._stopping:
            effects.append(Send(member=member, message=Stop()))
        if seat is not None and self.roster is not None:
            pushed = [*self._listens([member]), Send(member=member, message=Push(roster=self.roster))]
            return [*effects, *pushed, *self._admit(f"join-{member}")]
        if self._ending:
            return [*effects, Kill(member=member, why="the job is ending")]
        return effects + (self._admit(f"join-{member}") if self.roster else self._found(f"join-{member}"))

    def _enter(self, member: Member, presence: _Presence, version: Version) -> None:
        presence.entered = max(presence.entered, version)
        if presence.entered == self.version:
            self._awaited.discard(member)

    def _refuse(self, member: Member, difference: str) -> list[MembershipEffect]:
        why = f"{member.replica} cannot take part: {difference}"
        effects: list[MembershipEffect] = [Send(member=member, message=Refuse(why=why, is_lost=True))]
        if self.roster is None:
            return effects + self._end("failed", f"replicas differ: {why}")
        return effects + self._lose(member.replica, why)

    def _lose(self, replica: str, why: str) -> list[MembershipEffect]:
        if replica in self.staff.lost:
            return []
        if len(self.staff.stays) <= self._config.min_replicas:
            self.staff = self.staff.recalled()
        self.staff = self.staff.losing(replica)
        return [Lost(replica=replica, why=why, left=len(self.staff.runs), needed=self._config.min_replicas)]

    def _raise(self, now: float, raised: Raised) -> list[MembershipEffect]:
        is_joiner = self.roster is not None and self._is_joiner(raised.member)
        if self._halt is not None:
            return []  # everyone is told that the job halts, by an exception
        match self._raises.judge(now, raised, is_joiner):
            case ReplicaUnfit(why=why):
                return self._lose(raised.member.replica, why)
            case ScriptBroken(why=why):
                return self._break_off(why, raised.member)
        return []

    def _break_off(self, why: str, raiser: Member | None = None) -> list[MembershipEffect]:
        """The job cannot go on. Whoever holds the state saves it first, where there is a vault: they halt. Not waited for is
        whoever has raised: it is on its way out, and its death makes the roster that halts."""
        holders = [m for m in self._seated() if self._can_save(m)]
        if not holders or not self._config.keeps or self._ending or self._halt is not None:
            return self._end("failed", why)
        self._halt = Halt(step=self._floor, why=why, is_poison=False)
        if raiser is not None and raiser not in self._dead:
            return [self._persist()]
        effects = self._issue("broken-off", why)
        return effects if self._over else [*effects, *self._end_begins()]

    @property
    def _is_broken_off(self) -> bool:
        """It ends by its script's fault or for lack of replicas, whatever becomes of those who save its state."""
        return self._halt is not None and not self._halt.is_poison

    def _can_save(self, member: Member) -> bool:
        presence = self._present.get(member)
        if presence is None or member in self._gone or presence.left is not None or presence.is_released:
            return False
        return presence.holds_state and not self._raises.came_from((member,))

    def _end_begins(self) -> list[MembershipEffect]:
        if self._ending:
            return []
        self._ending = True
        seated = set(self._seated())
        unseated = {Member(*life) for life in self._lives.items()} - seated - self._dead
        self._gone |= unseated
        return [self._persist(), *(Kill(member=member, why="the job is ending") for member in sorted(unseated))]

    # Deaths and silence

    def _died(self, died: Died) -> list[MembershipEffect]:
        member = died.member
        if member in self._dead:
            return []
        was_given_up = member in self._gone
        self._dead.add(member)
        self._gone.add(member)
        if died.place is not None and died.place.step is not None:
            self._reached = max(self._reached, died.place.step)
        # A job that is being founded again has run: such an end may be old news, told again to a coordinator that came back.
        is_new = self.roster is None and self._founding.reached is None
        if is_new and member not in self._joined and (died.clean or died.never_joined):
            return self._end("failed", self._strange_end(died))
        presence = self._present.pop(member, None)
        is_seated = self._sits(member) and not (presence is not None and presence.is_released)
        # What it said of having left may be lost, with its connection or an earlier coordinator. A seated member's script
        # ends with code 0 only past the last step, and its last stamp tells where it was.
        is_past = is_seated and died.place is not None and died.place.is_past_the_end
        has_left = presence is not None and presence.left is not None
        has_left |= is_past or (died.clean and (self._ending or is_seated))
        self._left_well |= has_left and died.clean
        # A joiner that is ended because its word of having entered is still on its way may turn out to have left.
        if has_left and not died.clean and not was_given_up:
            self._failed_late.append(f"{member} {died.how} after its last step")
            self._struck_late &= died.struck
        effects: list[MembershipEffect] = []
        if self._sits(member) and not is_seated and self._parted_s is None:
            self._parted_s = died.now
        if has_left:
            effects += self._end_begins()
            self._await_others(died.now)
        elif is_seated:
            if not was_given_up:
                effects += self._blame(member, died.place, died.struck)
            effects += self._issue(f"died-{member}", f"{member} {died.how}")
            if self._halt is not None and not self._over:
                effects += self._end_begins()
        if self._over:
            return effects
        if self._ending:
            return effects + self._finish()
        if has_left:
            return effects
        effects += self._restart(died)
        if self._over:
            return effects
        # It may have been the one that was to take a place, or the last whose death had to be proven.
        return effects + (self._admit(f"died-{member}") if self.roster else self._found(f"died-{member}"))

    def _blame(self, member: Member, place: Place | None, struck: bool = False) -> list[MembershipEffect]:
        """Was it the lane that it died in?"""
        if place is None or place.step is None or place.lane is None:
            place = self._raises.place_of(member)
        if place is None or place.step is None or place.lane is None:
            return []
        cell = Cell(place.step, place.lane)
        if cell in self._skips or self._halt is not None or cell.step < self._floor:
            return []  # old news: deaths are reported again to a coordinator that came back
        poison = self._suspicion.blame(cell, member, struck)
        if poison is None:
            return []
        samples = self._contract.samples(cell) if self._contract else ()
        if self._config.on_poison == "skip":
            self._skips.add(cell)
        else:
            advice = "look at them, or leave such lanes out with --on-poison skip"
            self._halt = Halt(step=cell.step, why=f"{poison.words(samples)}: {advice}")
        return [Poisoned(poison=poison, samples=samples, decision=self._config.on_poison)]

    def _strange_end(self, died: Died) -> str:
        """A script that ran to its end and took no part. Once a job runs, that is a replica's trouble, not the job's."""
        script = self._config.script
        if died.never_joined:
            return f"{script} never called regrow.join(): call it before building the model (see the README's script)"
        return f"{script} ended before its first step: after regrow.join() it must loop over job.steps(...)"

    def _restart(self, died: Died) -> list[MembershipEffect]:
        replica = died.member.replica
        if self._lives.get(replica) != died.member.incarnation or replica in self.staff.retired:
            return []
        if replica in self.staff.leaving or replica in self.staff.moving:
            self.staff = self.staff.retiring(replica)
            return [self._persist()]
        effects: list[MembershipEffect] = []
        if replica not in self.staff.lost:
            allowed = self._budget.spend(replica, died.now)
            if isinstance(allowed, Exhausted):
                effects += self._lose(replica, allowed.why)
            elif self._hopeless():
                return self._end("failed", f"{died.member} {died.how} and there is no other replica to go on with")
            else:
                member = Member(replica, died.member.incarnation + 1)
                self._lives[replica] = member.incarnation
                why = f"{died.member} {died.how}"
                granted = Granted(member=member, restart=allowed, why=why)
                return [self._persist(), granted, Start(member=member, delay_s=allowed.delay_s, why=why)]
        left, needed = len(self.staff.runs), self._config.min_replicas
        if not left:
            return effects + self._end("failed", "no replica is left that may be restarted")
        if left < needed:
            gone = ", ".join(sorted(self.staff.lost))
            why = f"only {left} of {left + len(self.staff.lost)} replicas may still run ({gone} will not be restarted)"
            return effects + self._break_off(f"{why}, and the job needs {needed}: mend the cause, or lower --min-replicas")
        return [*effects, self._persist(), *self._found(f"lost-{replica}")]

    def _hopeless(self) -> bool:
        """A script that raised before any state existed, with nobody else to show that it can run."""
        is_new = self.roster is None and self._founding.reached is None
        return is_new and len(self.staff.names) == 1 and self._raises.first is not None

    def _expire(self, now: float) -> list[MembershipEffect]:
        effects: list[MembershipEffect] = []
        if now - self._ticked_s > self._config.lease_s / 2:
            self._opened_s = now  # this process itself was stopped: what it missed meanwhile is still unread
        self._ticked_s = now
        latest_s = max(self._heard_s, self._opened_s)
        if self._agentless_s is not None and now - max(self._agentless_s, latest_s) > self._config.lease_s:
            return self._give_up()
        if self.roster is None:
            return effects
        if now - self._opened_s > self._config.lease_s and now > self._lapse_s:
            effects += self._evict_silent(now)
            if self._over:
                return effects
        if self._complained_s is not None and now - self._complained_s > self._config.grace_s:
            self._complained_s = None
            effects += self._issue("complaint", "a group broke, and every member lives")
        if self._parted_s is not None and now - self._parted_s > self._config.grace_s:
            effects += self._issue("parted", "not everybody has gone on without those who left")
        if self._over or self.roster is None:
            return effects  # nobody was left for a roster
        if self.roster.suspects and len(self.roster.seats) == 1 and not self._may_come(self.roster.members):
            effects += self._issue("alone", "nobody else can come who would hold the state")
        effects += self._reinforce(now)
        effects += self._stop_in_time(now)
        if self._speeds.has_news and now >= self._weighed_s + _WEIGHED_S:
            self._weighed_s = now
            effects += self._admit("speeds")
        if self._ending and not self._over:
            effects += self._finish()
        return effects

    def _reinforce(self, now: float) -> list[MembershipEffect]:
        """Those who have entered a roster that waits are in no collective, and notice nothing of a line that was lost while
        another read its table from it. That one never enters: whoever has come meanwhile is reason enough for the next."""
        roster = self.roster
        is_overdue = self._awaited and now - max(self._made_s, self._opened_s) > self._config.lease_s
        if roster is None or not roster.waits or not is_overdue or self._ending:
            return []
        coming = [member for member in self._waiting(roster) if not self._sits(member)]
        return self._issue("overdue", f"{_names(coming)} joined; the others wait", coming) if coming else []

    def _evict_silent(self, now: float) -> list[MembershipEffect]:
        """Everybody who is silent, by one roster; nobody while no holder of the state is heard."""
        silent: dict[Member, str] = {}
        is_held, self._lapse_s = False, now + self._config.lease_s
        for member in self._seated():
            presence = self._present.get(member)
            if member in self._gone or (presence is not None and (presence.left is not None or presence.is_released)):
                continue
            heard_s = presence.heard_s if presence else self._opened_s
            self._lapse_s = min(self._lapse_s, heard_s + self._config.lease_s)
            if now - heard_s > self._config.lease_s:
                silent[member] = f"silent for {now - heard_s:.1f} s"
            else:
                is_held |= presence is not None and presence.holds_state
        return self._evict(silent, f"evicted-{next(iter(silent))}") if silent and is_held else []

    def _may_come(self, members: Iterable[Member]) -> bool:
        """May another replica still join these?"""
        return not self._ending and bool(set(self.staff.stays) - {m.replica for m in members})

    def _hung(self, hung: Hung) -> list[MembershipEffect]:
        """The agent's judgement may be wrong. That costs a restart, never the state, and never a result."""
        now, member, why = hung.now, hung.member, hung.why
        if member in self._gone or self._lives.get(member.replica) != member.incarnation:
            return []
        if self._left_well or any(other.left is not None for other in self._present.values()):
            # Someone saw every row of the last boundary: the end is reached, and this one only keeps it from being told.
            return [Kill(member=member, why=why)]
        if not self._sits(member):
            self._gone.add(member)
            self._present.pop(member, None)
            return [self._persist(), Kill(member=member, why=why)]
        if self._can_go_on_without(member, now):
            effects = self._blame(member, hung.place) + self._evict({member: why}, f"hung-{member}")
            return effects + (self._end_begins() if self._halt is not None and not self._over else [])
        if member in self._spared:
            return []
        self._spared.add(member)
        return [Spared(member=member, why=f"{why}; nobody else is known to hold the training state")]

    def _can_go_on_without(self, member: Member, now: float) -> bool:
        """Is somebody else heard who is known to hold the state?"""
        for other in self._seated():
            presence = self._present.get(other)
            if other == member or presence is None or presence.left is not None or presence.is_released:
                continue
            if presence.holds_state and now - presence.heard_s <= self._config.lease_s:
                return True
        return False

    def _await_others(self, now: float) -> None:
        """Somebody has left: the rest leave within the grace, or are given a roster of their own."""
        if self._complained_s is None:
            self._complained_s = now

    def _evict(self, whys: dict[Member, str], cause: str) -> list[MembershipEffect]:
        """These members, each for its reason, by one roster."""
        for member in whys:
            self._gone.add(member)
            self._present.pop(member, None)
        effects = self._issue(cause, "; ".join(f"{member} is evicted: {why}" for member, why in whys.items()))
        for member, why in whys.items():
            if self.roster is not None and not self._over:
                effects.append(Send(member=member, message=Push(roster=self.roster)))
            effects.append(Kill(member=member, why=why))
        return effects

    # Rosters

    def _found(self, cause: str) -> list[MembershipEffect]:
        """The first roster, once everyone who can still come is there."""
        staff = self.staff
        if self.roster is None and self._founding.seeks and self._sought != self._term:
            return self._seek()  # the last of those who had to die is dead
        if self.roster is not None or len(self._present) + len(staff.lost) + len(staff.retired) < len(staff.places):
            return []
        if self._founding.seeks or not self._is_proven:
            return []  # whoever is not proven dead may yet hold more than the origin
        # Before everybody was lost one may have left for good whose relief was still on its way.
        self.staff = staff.cast(frozenset(staff.runs))
        awaited = set(self.staff.places) & set(staff.runs)
        founders = {member: presence for member, presence in self._present.items() if member.replica in awaited}
        if {member.replica for member in founders} != awaited or not awaited:
            return []
        for presence in founders.values():
            presence.founder = True
        origin = self._founding.origin
        if origin is None:
            return self._make(set(founders), cause, "every replica is ready")
        assert self._contract is not None, "founders have joined"
        others = differences(self._founding.mathematics, self._contract.terms)
        if others and not self._config.new_mathematics:
            return self._end("failed", f"cannot resume from step {origin.step}: {'; '.join(others)}. {_REMEDY}")
        if why := impossible(self._founding.mathematics, self._contract.terms):
            return self._end("failed", f"cannot resume from step {origin.step}: {why}")
        if self._is_done(origin):
            return self._end("finished", f"it was finished before, at step {origin.through}: nothing is left to do")
        self._comebacks = self._comebacks.founded(origin.through)
        is_start = self._founding.reached is None
        reached, self._floor = self._founding.reached or 0, origin.through
        begun = data_from(self._contract.terms)
        # Said before it is durable: of a coordinator that dies in between the journal says too much, never too little.
        founded = Founded(
            version=Version(self._term, self._n + 1),
            origin=origin,
            reached=max(reached, origin.through),
            is_start=is_start,
            differences=others,
            data_from=(begun.step, begun.place),
        )
        why = f"every replica is ready to go on from step {origin.through}{'' if is_start else f': {origin}'}"
        return [founded, *self._make(set(founders), cause, why)]

    def _is_done(self, origin: Origin) -> bool:
        """Was the job finished before, with all the steps that are asked for now? A step that was named, and another
        mathematics, are the operator's word that it goes on."""
        founding, config = self._founding, self._config
        if not founding.is_final or founding.reached is not None or config.resume_step is not None or config.new_mathematics:
            return False
        return self._contract is not None and not has_more(self._contract.terms.get("steps", ""), origin.through)

    def _has_buried(self) -> bool:
        """Are those who left as planned gone? A coordinator that came back knows them by their replicas alone."""
        if self._founding.reached is None:
            return True
        return all(Member(name, self._lives[name]) in self._dead for name in self.staff.retired)

    def _stateless(self, why: str) -> list[MembershipEffect]:
        """The members have testified that none of them holds the state, and leave."""
        if self._halt is not None and self._is_broken_off:
            return self._end("failed", f"{self._halt.why}; {why}")
        if self.roster is None or not self._refounds:
            return self._end("state-lost", why)
        members = self.roster.members
        self._gone |= set(members)
        for member in members:
            self._present.pop(member, None)
        effects = self._refound(why)
        return effects if self._over else [*effects, *(Kill(member=member, why="it holds no state") for member in members)]

    @property
    def _refounds(self) -> bool:
        return self._config.keeps and self._halt is None and not self._stopping

    def _refound(self, why: str) -> list[MembershipEffect]:
        """Nobody is left who could testify, and the vault holds what was saved: begin again from there."""
        reached = max(self._floor, self._reached)
        comebacks = self._comebacks.after_loss(reached, self._config.max_job_restarts)
        if isinstance(comebacks, NoProgress):
            return self._end("failed", f"{why}; {comebacks.why}")
        self._comebacks = comebacks
        self._founding = Founding(seeks=True, reached=reached)
        self._term, self._n = self._term + 1, 0
        self.roster = self._base = None
        self._awaited = set()
        self._complained_s = self._parted_s = None
        parted = sorted(m for m, presence in self._present.items() if presence.is_released or presence.holds_state)
        self._gone.update(parted)
        for member in parted:
            del self._present[member]
        for presence in self._present.values():
            presence.told = presence.entered = NO_VERSION
            presence.has_caught_up, presence.overflowed, presence.founder = False, "", False
        kills = [Kill(member=member, why="it has handed over") for member in parted]
        return [self._persist(), Unfounded(reached=reached, why=why), *self._seek(), *kills]

    def _refound_all(self, why: str) -> list[MembershipEffect]:
        """The same at the job's end, since when nobody was replaced."""
        self._ending, self._failed_late = False, []
        effects = self._refound(why)
        for member in [Member(*life) for life in self._lives.items()]:
            if member in self._dead and not self._over:
                effects += self._restart(Died(now=self._now_s, member=member, how="was lost", clean=False))
        return effects

    def _admit(self, cause: str) -> list[MembershipEffect]:
        """Once the current roster was entered by all its members: what was wished and holds by now, and the next change."""
        roster = self.roster
        if roster is None or self._ending or self._awaited:
            return []
        for member in self._base.members if self._base is not None else ():
            if roster.seat(member) is None and member in self._present:
                self._present[member].is_released = True  # its word of that may be late, or lost
        self._base = self._parted_s = None
        self._founding = Founding()  # all of them hold the state
        return self._fulfil() + self._change(roster, cause)

    def _fulfil(self) -> list[MembershipEffect]:
        """Those who had to go are gone; wishes that hold, or never will, are over."""
        there, before = self._there(), (self.staff, self._wishes)
        kills: list[Kill] = []
        for name in (*self.staff.leaving, *self.staff.moving):
            if not self.staff.goes(name) or name in there:
                continue
            self.staff = self.staff.retiring(name)
            member = Member(name, self._lives[name])
            if member not in self._dead and self._is_joiner(member):
                self._gone.add(member)
                self._present.pop(member, None)
                kills.append(Kill(member=member, why="it is not needed any more"))
        told: list[WishTold] = []
        for wish in self._wishes:
            why = overtaken(wish, self.staff)
            if why is not None:
                told.append(WishTold(wish=wish, state="overtaken", why=why))
            elif is_met(wish, self.staff, there):
                told.append(WishTold(wish=wish, state="fulfilled"))
        over = {each.wish for each in told}
        self._wishes = tuple(wish for wish in self._wishes if wish not in over)
        # Told first: a wish that is not remembered any more is told by nobody else.
        return [*told, self._persist(), *kills] if (self.staff, self._wishes) != before else []

    def _change(self, roster: Roster, cause: str) -> list[MembershipEffect]:
        """Seat those who can be, leave out those who go, deal lanes anew; have those listen who are needed."""
        is_held_up = _is_held_up(roster)
        waiting = self._waiting(roster)
        able = self._able(roster.members)
        needed = waiting if is_held_up else waiting[: self.staff.cast(able).wanted(able)]
        urgent = [m for m in needed if is_held_up or self._present[m].overflowed]
        if urgent:
            # No boundary passes, or this joiner would never catch up: the members wait until it is healed.
            slow = [f"{m} cannot keep up: {why}" for m in urgent if (why := self._present[m].overflowed)]
            why = "; ".join(slow) or f"{_names(urgent)} joined"
            return self._make({*roster.members, *urgent}, cause, f"{why}; the others wait")
        if roster.waits and not self._waits(self.staff.cast(self._able(roster.members)).places, roster.members):
            return self._make(set(roster.members), cause, "enough replicas are here")
        if is_held_up and (dismissed := [m for m in roster.members if self._is_dismissed(m)]):
            # It cannot hand over at a boundary, and nothing is under way.
            last = all(self._is_dismissed(member) for member in roster.members)
            return [] if last else self._evict({dismissed[0]: "it was told to end"}, cause)
        if is_held_up or self._complained_s is not None:
            return []  # no boundary of it passes: its successor comes first
        # Nobody waits for a shadow that cannot keep up: it is parked until it is needed.
        listening = [m for m in (waiting if self._config.shadow else needed) if not self._present[m].overflowed]
        ready = [member for member in listening if self._present[member].has_caught_up]
        if planned := self._plan(roster, ready, cause):
            return planned
        told: list[MembershipEffect] = []
        for member in waiting:
            presence = self._present[member]
            if member in listening and presence.told != roster.version:
                presence.told, presence.listens = roster.version, True
                told.append(Send(member=member, message=Listen(roster=roster)))
            elif member not in listening and presence.listens and not presence.overflowed:
                # An earlier coordinator told it to, or more were needed then: the members would go on naming it.
                presence.told, presence.listens = NO_VERSION, False
                told.append(Send(member=member, message=Park()))
        return told

    def _waiting(self, roster: Roster) -> list[Member]:
        """Those without a seat that may have one: whoever is closest to it first."""
        stays, places = set(self.staff.stays), set(self.staff.places)

        def rank(member: Member) -> tuple[bool, bool, bool, Member]:
            presence = self._present[member]
            is_placed = member.replica in places
            return not presence.has_caught_up, not presence.listens, not is_placed, member

        waiting = [m for m, presence in self._present.items() if roster.seat(m) is None and not presence.is_released]
        return sorted((member for member in waiting if member.replica in stays), key=rank)

    def _plan(self, roster: Roster, ready: list[Member], cause: str) -> list[MembershipEffect]:
        """A roster that is entered at a boundary, if anything is to change."""
        seated = set(roster.members)
        staff = self.staff.cast(self._able((*seated, *ready)))
        # Where the job is to stop, the next boundary is everybody's last: nobody has to leave before.
        going = self._going(seated, ready, staff) if not self._stopping else set()
        if not (ready or going) and staff.places == self.staff.places:
            why = self._reconsider(roster)
            return self._make(seated, "speeds", why, base=roster) if why is not None else []
        told = [f"{_names(ready)} joined"] * bool(ready) + [f"{_names(going)} leaves"] * bool(going)
        return self._make((seated - going) | set(ready), cause, ", ".join(told) or "places have changed", base=roster)

    def _going(self, seated: set[Member], ready: list[Member], staff: Staff) -> set[Member]:
        """Those of them who leave as soon as a boundary passes."""
        dismissed = {member for member in seated if self._is_dismissed(member)}
        going = {member for member in seated if staff.goes(member.replica)} | dismissed
        staying = {member.replica for member in (seated - going) | set(ready)}
        if len(staying & set(staff.places)) < self._config.min_replicas:
            going = dismissed  # what was wished waits until enough are here
        return going if seated - going else set()  # somebody who holds the state stays: those who come are seated first

    def _reconsider(self, roster: Roster) -> str | None:
        """Why its lanes should be dealt anew; None when they are well dealt, or stay at home."""
        if self._config.on_loss == "shrink" or self._lanes is None or roster.suspects:
            return None
        working = {seat.member.replica: len(seat.lanes) for seat in roster.seats if not seat.spectates}
        return self._speeds.reconsider(working, self._lanes)

    def _seated(self) -> tuple[Member, ...]:
        """Everybody whose word may count: of the newest roster, and of its base while not all have entered it."""
        roster, base = self.roster, self._base
        if roster is None or base is None:
            return roster.members if roster is not None else ()
        return tuple(sorted({*roster.members, *base.members}))

    def _seat(self, member: Member) -> Seat | None:
        for roster in (self.roster, self._base):
            if roster is not None and (seat := roster.seat(member)) is not None:
                return seat
        return None

    def _sits(self, member: Member) -> bool:
        return self._seat(member) is not None

    def _issue(self, cause: str, why: str, coming: Iterable[Member] = ()) -> list[MembershipEffect]:
        """A roster of those members of the current one that are left, and of those who come."""
        roster = self.roster
        if roster is None:
            return []
        staying = {member for member in self._seated() if member not in self._gone}
        staying = {m for m in staying if (p := self._present.get(m)) is None or (p.left is None and not p.is_released)}
        if self._ending and staying and all(self._is_joiner(member) and not self._founds(member) for member in staying):
            # Joiners that came too late: whoever could have healed them has left, and nobody is replaced any more. A founder
            # needs nobody: its word of having entered is late, or lost, and it may be about to save the last state.
            self._gone |= staying
            return [self._persist(), *(Kill(member=member, why="the job is ending") for member in sorted(staying))]
        if staying:
            return self._make(staying | set(coming), cause, why)
        if self._ending:
            return self._finish()
        # Exceptions of the script are the script's failure, though the state is lost with them.
        is_broken = self._is_broken_off or self._raises.came_from(roster.members)
        outcome = "failed" if is_broken else "state-lost"
        if outcome == "state-lost" and self._refounds:
            return self._refound(f"every member of roster {roster.version} is lost, the last because {why}")
        poison = "" if self._halt is None else f"; {self._halt.why}"
        return self._end(outcome, f"every member of roster {roster.version} is lost, the last because {why}{poison}")

    def _is_joiner(self, member: Member) -> bool:
        """Present or on its way, and it has never entered a roster."""
        presence = self._present.get(member)
        return presence.entered == NO_VERSION if presence else not self._sits(member)

    def _founds(self, member: Member) -> bool:
        return (seat := self._seat(member)) is not None and seat.founder

    def _make(self, members: set[Member], cause: str, why: str, base: Roster | None = None) -> list[MembershipEffect]:
        """`base`: it is planned, and its members go on under that one until all of them are ready."""
        self._n += 1
        self._complained_s = self._parted_s = None
        self._made_s = self._now_s
        version = Version(self._term, self._n)
        self.staff = self.staff.cast(self._able(members))
        staying = [member for member in self._seated() if member in members]  # in order: thousands need not be sorted again
        places = set(self.staff.places)
        seats = {member: self._seat_of(member, places) for member in (*staying, *sorted(members.difference(staying)))}
        if base is not None:
            for member in [member for member in seats if base.seat(member) is None]:
                seats[member] = msgspec.structs.replace(seats[member], is_new=True)
        self._base = base
        assert self._lanes is not None, "the first member to join says how many lanes there are"
        self._suspicion.forget(self._floor)
        roster = compose(version, seats, self._lanes, self._floor, cause)
        if self._config.on_loss == "shrink":
            roster = at_home(roster, self._lanes, self.staff.places)
        elif len(members) > 1 or self._may_come(members):
            # What a lone survivor could lose by computing such a lane the vault holds as well: nobody waits for that.
            suspects = self._suspicion.counted if self._refounds else self._suspicion.suspects
            roster = msgspec.structs.replace(roster, suspects=suspects)
        skips = tuple(cell for cell in sorted(self._skips) if cell.step >= self._floor)
        planned_from = base.version if base is not None else None
        waits = self._waits(self.staff.places, members)
        self.roster = msgspec.structs.replace(
            roster, skips=skips, halt=self._halt, base=planned_from, waits=waits, origin=self._founding.origin
        )
        self._awaited = set(members)
        self._lapse_s = 0.0  # whoever is seated now may have been silent for long
        push = Push(roster=self.roster)
        told = self.roster.members if base is None else sorted({*members, *base.members})
        pushes = [Send(member=member, message=push) for member in told]
        return [self._persist(), Made(roster=self.roster, why=why, staff=self.staff), *self._listens(members), *pushes]

    def _waits(self, places: tuple[str, ...], members: Iterable[Member]) -> str:
        """Why members with these places must not go on; empty when they may."""
        working, needed = len({member.replica for member in members} & set(places)), self._config.min_replicas
        if working >= needed or self._stopping or self._ending or self._halt is not None:
            return ""
        return f"{working} of the {needed} replicas that the job needs are here"

    def _listens(self, members: Iterable[Member]) -> list[MembershipEffect]:
        """Those among them that listen until they enter the planned roster: to its base, whomever they heard before."""
        base = self._base
        if base is None:
            return []
        listeners = sorted(member for member in members if base.seat(member) is None)
        return [Send(member=member, message=Listen(roster=base)) for member in listeners]

    def _seat_of(self, member: Member, places: set[str]) -> Present:
        presence = self._present.get(member)
        known = presence if presence is not None else self._seat(member)
        assert known is not None, f"{member} is neither present nor seated"
        spectates = member.replica not in places
        weight = self._speeds.weight(member.replica)
        return Present(endpoint=known.endpoint, founder=known.founder, spectates=spectates, weight=weight)

    # The end

    def _finish(self) -> list[MembershipEffect]:
        """Over once nobody is left to wait for: those who left have exited too."""
        # Given up is not gone: after a restart nothing else tells that such a member may still be at its last step.
        # So are those whom a planned roster has no seat for, while they may not have gone on without it.
        if any(member not in self._dead for member in self._seated()):
            return []
        if any(member not in self._dead for member in self._present):
            return []
        if not self._left_well and self._now_s - self._opened_s <= self._config.lease_s and self._resumed:
            return []  # those who left well may have exited before this start: their exits are still being reported
        if self._halt is not None and (self._left_well or self._failed_late or self._is_broken_off):
            return self._end("failed", self._halt.why)
        lost = "every member was lost between the last step and the end"
        if not self._left_well and self._struck_late and self._refounds:
            return self._refound_all(lost)
        if self._failed_late:
            return self._end("failed", "; ".join(self._failed_late))
        if not self._left_well:
            return self._end("state-lost", lost)
        return self._end("stopped" if self._stopping else "finished", "every member has left")

    def _end(self, outcome: str, why: str) -> list[MembershipEffect]:
        self._over = True
        self._ended = End(outcome=outcome, why=why, first=self._raises.first)
        return [self._persist(), self._ended]

    def _give_up(self) -> list[MembershipEffect]:
        """Whoever turns out to live after all finds a successor that knows of no end."""
        self._over = True
        why = f"`regrow run` is gone, and no replica was heard for {self._config.lease_s:g} s"
        had_state = self.roster is not None or self._founding.reached is not None
        return [End(outcome="state-lost" if had_state else "failed", why=why, first=self._raises.first)]


_REMEDY = "Give what it was saved with, or --new-mathematics: training then goes on, and is no longer that of the same job"


def _is_held_up(roster: Roster) -> bool:
    """Does it pass no boundary before somebody joins it?"""
    return bool(roster.waits) or (len(roster.seats) == 1 and bool(roster.suspects))


def _names(members: Iterable[Member]) -> str:
    return ", ".join(map(str, sorted(members)))
