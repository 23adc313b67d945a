"""The coordinator's process: carries out what its Membership decides, one effect at a time.

A crash may come between any two effects. What it had made durable is all its successor knows.
"""

from typing import TYPE_CHECKING

import msgspec

from regrow.core.errors import Invariant
from regrow.core.membership import Membership
from regrow.core.membership_config import MembershipConfig
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
    MembershipEvent,
    Opened,
    OriginCame,
    Ticked,
    WishCame,
)
from regrow.core.messages import Beat, FromMember
from regrow.core.open_orders import OpenOrders
from regrow.core.records import JobEnded, ReplicaLost, RestartPlanned, WishNoted
from regrow.core.staff import Staff
from regrow.core.wishes import Wish

if TYPE_CHECKING:
    from regrow.sim.world import World


class Coordinator:
    def __init__(self, world: "World", config: MembershipConfig) -> None:
        self._world = world
        self._config = config
        self._machine: Membership | None = None
        self._saved: Saved | None = None
        self._orders = OpenOrders()
        self.sought: Seek | None = None
        """Not answered yet."""
        self.up = False
        self.life = 0
        """Raised with every start and every crash."""
        self.ended: End | None = None

    @property
    def staff(self) -> Staff | None:
        """While it is up."""
        return self._machine.staff if self._machine is not None else None

    @property
    def has_halted(self) -> bool:
        """It was made durable that the job ends before its time, in good order."""
        return self._saved is not None and self._saved.halt is not None

    def open(self) -> None:
        self.up = True
        self.life += 1
        self._world.story.note("coordinator", f"starts, life {self.life}")
        self._machine = self._world.rules.membership(self._config, self._saved)
        self._orders, self.sought = OpenOrders(), None
        self.take(Opened(now=self._world.timeline.now))
        self.take(AgentGone(now=self._world.timeline.now))
        self._tick(self.life)
        self._world.agent.connect()

    def crash(self, down_s: float) -> None:
        if not self.up or self.ended:
            return
        self._world.sights.crashed()
        self.up = False
        self.life += 1
        self._machine = None
        self._world.agent.cut()
        for process in self._world.agent.processes.values():
            process.wire.cut()
        self._world.timeline.after(down_s, None, self.open)

    def _tick(self, life: int) -> None:
        if self.up and self.life == life:
            self.take(Ticked(now=self._world.timeline.now))
            self._world.timeline.after(0.7, None, self._tick, life)

    def hear(self, message: FromMember) -> None:
        self.take(Heard(now=self._world.timeline.now, message=message))

    def wish(self, wish: Wish) -> None:
        """The operator's: nobody hears it while the coordinator is down."""
        self.take(WishCame(now=self._world.timeline.now, ticket=0, wish=wish))

    def agent_came(self) -> None:
        self.take(AgentCame(now=self._world.timeline.now))
        for order in self._orders.open():
            self._world.agent.order(order)
        if self.sought is not None:
            self._world.agent.order(self.sought)

    def found(self, came: OriginCame) -> None:
        if self.sought is not None and self.sought.number == came.number:
            self.sought = None
        self.take(came)

    def agent_gone(self) -> None:
        self.take(AgentGone(now=self._world.timeline.now))

    def buried(self, died: Died) -> None:
        if self._machine is not None:
            self._orders.exited(died.member)
        self.take(died)

    def take(self, event: MembershipEvent) -> None:
        if self._machine is None or self.ended:
            return
        quiet = isinstance(event, Ticked) or (isinstance(event, Heard) and isinstance(event.message, Beat))
        try:
            effects = self._machine.handle(event)
        except (Invariant, AssertionError) as broken:
            self._world.referee.fail("invariant", f"coordinator: {broken}")
        life = self.life
        if not quiet or effects:
            self._world.story.note("coordinator", event)
            self._world.faults.passed(type(event).__name__, None)
            if self.life != life:
                return  # it crashed knowing, before it did anything about it
        for effect in effects:
            self._world.story.note("coordinator", effect)
            self._do(effect)
            self._world.faults.passed(type(effect).__name__, None)
            if self.life != life:
                return

    def _do(self, effect: MembershipEffect) -> None:
        world = self._world
        match effect:
            case Persist(saved=saved):
                self._saved = saved
                world.losses.made_durable(saved)
                world.referee.is_stop_durable |= saved.stopping
                world.referee.last_wish = max(world.referee.last_wish, saved.wished)
                if saved.roster is not None:
                    world.referee.made(saved.roster, "made durable", saved.staff)
            case Made(roster=roster, why=why, staff=staff):
                world.referee.made(roster, why, staff)
            case Send(member=member, message=message):
                process = world.agent.processes.get(member)
                if process is not None and process.alive:
                    process.wire.push(message)
            case Start() | Kill():
                self._orders.give(effect)
                world.agent.order(effect)
            case Seek():
                self.sought = effect
                world.agent.order(effect)
            case Unfounded():
                world.sights.unfounded(effect)
            case Founded():
                world.custody.founded(effect)
            case Granted(member=member, restart=restart, why=why):
                fact = RestartPlanned(member=member, why=why, **msgspec.structs.asdict(restart))
                world.referee.fact("coordinator", fact)
            case Poisoned():
                world.referee.poisoned(effect)
            case Lost(replica=replica, why=why, left=left, needed=needed):
                world.referee.lost += 1
                world.referee.fact("coordinator", ReplicaLost(replica=replica, why=why, left=left, needed=needed))
            case Spared():
                pass
            case WishTold(wish=wish, state=state, why=why):
                world.referee.wished(effect)
                world.sights.wished(effect)
                world.referee.fact("coordinator", WishNoted(number=wish.number, wish=str(wish), state=state, why=why))
            case End(outcome=outcome, why=why):
                self.ended = effect
                world.referee.fact("coordinator", JobEnded(outcome=outcome, why=why))
