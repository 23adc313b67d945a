"""A member's connection to the coordinator: ordered while it lasts, lost with whatever was under way.

What a closed connection still had under way to the coordinator may arrive late: two sockets are read in any order.
"""

from typing import TYPE_CHECKING

from regrow.core.messages import Beat, FromMember, Join, Left, ToMember
from regrow.core.roster import Endpoint

if TYPE_CHECKING:
    from regrow.sim.process import Process


class Connection:
    """One connection. Closed once, never opened again."""

    def __init__(self, life: int) -> None:
        self.life = life
        """Of the coordinator it was made to."""
        self.open = True
        self.lingers = False
        """Closed, but what was on its way still arrives: it lies in somebody's buffer."""
        self.up_s = 0.0
        self.down_s = 0.0


class Wire:
    """Connects, and connects again."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._world = process.world
        self.connection: Connection | None = None
        self.blocked_until_s = 0.0
        self._unsent: list[FromMember] = []

    def connect(self) -> None:
        process, world = self._process, self._world
        if self.connection is not None or process.parted not in (None, "well"):
            return
        if not world.coordinator.up or world.timeline.now < self.blocked_until_s:
            world.timeline.after(world.chance.between(0.1, 1.0), process, self.connect)
            return
        self.connection = Connection(world.coordinator.life)
        attendance = process.attendance
        # What could not be said goes ahead of the Join, in order: a new coordinator does not know the speaker yet.
        for message in self._unsent:
            self.send(message)
        self._unsent.clear()
        self.send(
            Join(
                member=process.member,
                endpoint=Endpoint(process.name, 1),
                contract=world.contract,
                lanes=world.plan.lanes,
                seen=attendance.seen,
                entered=attendance.entered,
                step=attendance.step,
                listens=attendance.listens,
            )
        )

    def cut(self) -> None:
        """The connection is lost; a living process connects again."""
        if self.connection is None:
            return
        self.connection.open = False
        self.connection.lingers = self._world.chance.happens(0.4)
        self.connection = None
        if self._process.alive:
            self._world.timeline.after(self._world.chance.between(0.01, 1.0), self._process, self.connect)

    def block(self, span_s: float, loud: bool) -> None:
        """Nothing gets through for a while: the connection is lost, or silently stalls."""
        self.blocked_until_s = self._world.timeline.now + span_s
        if loud:
            self.cut()

    def send(self, message: FromMember) -> None:
        """Without a connection, kept for the next one, or lost with the buffers of the old one."""
        connection = self.connection
        if connection is not None:
            connection.up_s = self._due_s(connection.up_s)
            delay_s = connection.up_s - self._world.timeline.now
            self._world.timeline.after(delay_s, None, self._arrive, connection, message)
        elif self._world.chance.happens(0.5):
            self._unsent.append(message)

    def beat(self) -> None:
        connection, now = self.connection, self._world.timeline.now
        if connection is not None and now >= self.blocked_until_s and connection.life == self._world.coordinator.life:
            self._world.coordinator.hear(Beat(member=self._process.member))

    def push(self, message: ToMember) -> None:
        connection = self.connection
        if connection is not None:
            connection.down_s = self._due_s(connection.down_s)
            delay_s = connection.down_s - self._world.timeline.now
            self._world.timeline.after(delay_s, self._process, self._deliver, connection, message)

    def _due_s(self, last_s: float) -> float:
        world = self._world
        return max(last_s, max(world.timeline.now, self.blocked_until_s) + world.chance.soon_s())

    def _arrive(self, connection: Connection, message: FromMember) -> None:
        if not (connection.open or connection.lingers) or connection.life != self._world.coordinator.life:
            return
        self._world.coordinator.hear(message)
        if isinstance(message, Left):
            self._process.heard_left()

    def _deliver(self, connection: Connection, message: ToMember) -> None:
        # A buffer is read to its end before the next connection is made.
        if connection.open or (connection.lingers and self.connection is None):
            self._process.receive(message)
