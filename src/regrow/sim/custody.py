"""The checks of saves and origins, which see the vault and all processes at once (rules S1 to S8 of docs/protocol.md).

- saves      a portion is the state of the step it is called after; a generation has a portion of every member, all of one
             state; what is wished is decided before long; what is decided becomes whole, or another one is decided; the last
             one is whole; whoever is alone with the state has it saved after the first boundary
- founding   a job is founded from what was whole, said with its root, while nobody lives who holds the state; a founder
             states nothing older; other mathematics are taken by the operator's word alone; no whole state is lost
- log        in an every-step job what is committed lies in the logs, whole; a founding goes on behind all that was
             committed, by records of this job alone, and ends where it was to end
"""

from typing import TYPE_CHECKING

from regrow.core.attendance import Task
from regrow.core.effects import Commit, Exchange, Save
from regrow.core.membership_effects import End, Founded
from regrow.core.origin import differences, mathematics
from regrow.core.records import OriginTaken
from regrow.core.roster import Member, Version
from regrow.sim.vault import Gathering, Generation, Key

if TYPE_CHECKING:
    from regrow.sim.process import Process
    from regrow.sim.world import World

_SAVE_STEPS = 4
"""So many steps after a save was wished it is decided, and after that whole, or another one is, while nothing goes wrong."""
_SAVE_S = 10.0


class Custody:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._whole: set[tuple[int, str]] = set()
        self._open: dict[Key, tuple[int, float]] = {}
        """Saves that were decided, neither whole nor followed by another: at which step, and when."""
        self._wished: dict[Process, tuple[int, float]] = {}
        """Who wishes a save since when: at which step of the job."""
        self._alone: dict[tuple[Member, Version], bool] = {}
        """Who has passed a boundary with nobody beside it, under which roster: has it saved the state since?"""
        self._step = 0
        self._recalled: int | None = None
        """The step of the saved state that the job was founded from last."""
        self._has_kept = False
        """This run, in memory."""
        self.foundings = 0
        self._spoiled_at: int | None = None
        """Memory was harmed when this step was the newest committed: until a newer state is whole, steps may be lost."""
        self._harmed: tuple[int, str] | None = None
        """The base, where that is all that was harmed: with the same state from elsewhere no step is."""
        self._cuts: list[tuple[int, int]] = []
        """Where foundings went on, and under which term."""
        self._stopped_at: set[int] = set()
        """Where the job ends, by the verdict of a boundary."""

    def begins_with(self, generation: Generation) -> None:
        """It was whole in an earlier run."""
        self._whole.add((generation.step, generation.root))

    @property
    def is_refused(self) -> bool:
        """The job was to resume with other mathematics, and nobody had allowed that."""
        world, saved = self._world, self._world.vault.newest
        return saved is not None and not world.is_new_mathematics and saved.terms != world.contract.terms

    # Saves

    def wished(self, process: "Process") -> None:
        if process.attendance.acting is not None and process.attendance.task is not Task.GONE:
            self._wished.setdefault(process, (self._step, self._world.timeline.now))

    def saved(self, process: "Process", save: Save) -> None:
        world = self._world
        self._wished.clear()
        world.referee.state(process, save.step)
        if process.attendance.step != save.step:
            world.referee.fail("saves", f"{process.name} is at step {process.attendance.step}, and saves step {save.step}")
        self._alone[process.member, save.version] = True
        key = save.step, save.version
        if key not in self._open:
            self._open = {old: since for old, since in self._open.items() if old > key}
            self._open[key] = save.step, world.timeline.now

    def kept(self, generation: Generation, gathering: Gathering) -> None:
        world, save = self._world, gathering.save
        if set(gathering.came) != set(save.members) or set(gathering.came.values()) != {generation.state}:
            world.referee.fail("saves", f"the save of step {save.step} has a label, and {gathering.came} of {save.members}")
        if generation.state != generation.line.states[generation.step]:
            world.referee.fail("saves", f"what was saved is not the state of step {generation.step}")
        self._whole.add((generation.step, generation.root))
        self._has_kept = True
        if self._spoiled_at is not None and generation.step > self._spoiled_at:
            self._spoiled_at = self._harmed = None
        self._open = {key: since for key, since in self._open.items() if key[0] > generation.step}

    def passed(self, process: "Process", commit: Commit) -> None:
        world = self._world
        roster = world.referee.roster(commit.attempt)
        if world.plan.saves is None or commit.by != "boundary" or len(roster.seats) > 1:
            return
        if commit.switch is not None or commit.step + 1 >= commit.last:
            return
        if not self._alone.get((process.member, roster.version), True):
            world.referee.fail("saves", f"{process.name} is alone with the state in {roster.version}, and has not saved it")
        # What it has just recalled lies in memory already; from then on it goes on as between two saves.
        self._alone.setdefault((process.member, roster.version), commit.step == self._recalled)

    def committed(self, step: int) -> None:
        """The job has come so far."""
        world, self._step = self._world, step
        self._wished = {p: since for p, since in self._wished.items() if p.alive and p.attendance.task is not Task.GONE}
        if world.timeline.now < world.faults.quiet_s or not world.vault.up:
            self._open = dict.fromkeys(self._open, (step, world.timeline.now))
            self._wished = dict.fromkeys(self._wished, (step, world.timeline.now))
            return
        self._open = {key: since for key, since in self._open.items() if self._is_owed(key)}
        for (saved, _), since in self._open.items():
            if self._is_long(since):
                world.referee.fail("saves", f"the save of step {saved} is not whole, and step {step} is committed")
        for process, since in self._wished.items():
            if self._is_long(since):
                world.referee.fail("saves", f"{process.name} wishes a save since step {since[0]}, and none is decided")

    def _is_owed(self, key: Key) -> bool:
        """Does anybody live who had a part in that save, and would wish it again?"""
        members = self._world.referee.roster(key[1]).members
        return any(p.alive and p.member in members for p in self._world.agent.processes.values())

    def _is_long(self, since: tuple[int, float]) -> bool:
        step, since_s = since
        return self._step - step > _SAVE_STEPS and self._world.timeline.now - since_s > _SAVE_S

    # Origins

    def stated(self, process: "Process", exchange: Exchange) -> None:
        roster, said = self._world.referee.roster(exchange.version), exchange.statement
        if not said.holds_state:
            return
        self._world.referee.state(process, said.step)
        if roster.origin is not None and said.step < roster.origin.through:
            self._world.referee.fail("founding", f"{process.name} states step {said.step} to {roster.version}")

    def founded(self, founded: Founded) -> None:
        world, origin = self._world, founded.origin
        if origin.is_beginning and world.plan.logs:
            if self._has_kept:
                world.referee.fail("log", "the job begins again, and its logs have given up what was in a base")
            if origin.root != str(world.reference.states[0]):
                world.referee.fail("log", f"the job is founded from {origin.root}, which was not its beginning")
        elif (origin.step, origin.root) not in self._whole:
            world.referee.fail("founding", f"the job is founded from step {origin.step}, which was never whole")
        holders = [p for p in world.agent.processes.values() if p.alive and p.attendance.holds_state]
        if holders:
            step = holders[0].attendance.step
            world.referee.fail(
                "founding", f"{holders[0].name} lives, and holds step {step}: nobody may be founded beside it"
            )
        others = differences(mathematics(world.vault.origin(origin.root).terms), world.contract.terms)
        if others and not world.is_new_mathematics:
            world.referee.fail("founding", f"the job is resumed with other mathematics: {others}")
        self._followed(founded)
        self.foundings += 1
        self._step, self._wished, self._open = origin.through, {}, {}
        self._recalled = None if origin.is_beginning else origin.step
        world.founded(founded)
        world.sights.founded(self.foundings, others)
        fact = OriginTaken(
            version=founded.version,
            step=origin.step,
            root=origin.root,
            where=origin.where,
            reached=founded.reached,
            differences=founded.differences,
            records=origin.records,
        )
        world.referee.fact("coordinator", fact)

    # The log

    def spoiled(self, base: Generation | None) -> None:
        """In memory; None: a log was harmed."""
        self._harmed = None if base is None or self._spoiled_at is not None else (base.step, base.root)
        self._spoiled_at = self._world.referee.top

    def logged(self, process: "Process", commit: Commit) -> None:
        """What is committed lies in the logs, whole, before anybody has committed it."""
        world = self._world
        if not world.plan.logs or self._spoiled_at is not None:
            return
        if commit.by != "record" and not world.logs.holds(commit.step, commit.attempt, commit.digest):
            what = f"{process.name} commits step {commit.step} of {commit.attempt}, and some of it is in no log"
            world.referee.fail("log", what)
        if commit.by == "boundary" and commit.last == commit.step + 1 < world.plan.steps:
            self._stopped_at.add(commit.last)
            world.faults.passed("Stopped", process)

    def _followed(self, founded: Founded) -> None:
        """No committed step is lost, and what is replayed is what these members would have committed."""
        world, origin, records = self._world, founded.origin, self._world.logs.replayed
        if not world.plan.logs:
            return
        if [record.step for record in records] != list(range(origin.step, origin.through)):
            world.referee.fail("log", f"the job is to go on at step {origin.through}, and replays {records}")
        is_same = (origin.step, origin.root) == self._harmed
        is_sound = self._spoiled_at is None or is_same
        if origin.through <= world.referee.top and is_sound:
            world.referee.fail("log", f"the job goes on at step {origin.through}, and had committed {world.referee.top}")
        if records and origin.where == "store" and not is_same:
            world.referee.fail("log", f"{records} are replayed onto what comes from elsewhere")
        for record in records:
            if not world.logs.holds(record.step, record.attempt, record.digest):
                world.referee.fail("log", f"step {record.step} of {record.attempt} is replayed, and some is in no log")
            term = max((term for through, term in self._cuts if through <= record.step), default=0)
            if record.attempt.term < term:
                world.referee.fail("log", f"{record} is replayed, which the founding of term {term} had given up")
        if records and records[-1].last < origin.through:
            world.referee.fail("log", f"the job ends before step {records[-1].last}, and goes on at {origin.through}")
        is_to_end = origin.through in self._stopped_at and is_sound
        if records and records[-1].last > origin.through and is_to_end:
            world.referee.fail("log", f"the job was to end at step {origin.through}, and goes on")
        self._cuts.append((origin.through, founded.version.term))
        if records:
            world.sights.see("a job was founded with records to replay")
        if origin.is_beginning:
            world.sights.see("a job was founded so from its own beginning")
        self._spoiled_at = None
        self._harmed = self._harmed if is_same else None  # a coordinator that dies now says all of it again
        self._stopped_at = {step for step in self._stopped_at if step <= origin.through}

    # The end

    def ended(self, end: End) -> None:
        world, vault = self._world, self._world.vault
        if world.plan.saves is None:
            return
        if end.outcome == "failed" and "--new-mathematics" in end.why:
            self._refused(end)
        parted = [p for p in world.agent.processes.values() if (p.parted or "").startswith("well")]
        has_halted = world.coordinator.has_halted and any(p.exited_clean for p in parted)
        if has_halted:
            world.sights.see("a halted job saved its state")
        if (end.outcome in ("finished", "stopped") or has_halted) and self._spoiled_at is None:
            steps = {p.attendance.step for p in parted}
            if vault.newest is None or vault.newest.step not in steps:
                self._lost(f"the job ended at {steps}, and the newest state that is whole is of {vault.newest}")
        is_given_up = world.referee.is_agent_lost or world.referee.stops or world.referee.is_poisoned
        is_kept = self._has_kept or world.plan.logs
        if end.outcome == "state-lost" and is_kept and not is_given_up and self._spoiled_at is None:
            self._lost(f"{end.why}, though a saved state was whole in memory")

    def _refused(self, end: End) -> None:
        world = self._world
        if self.foundings or "lr is other, it was saved with one" not in end.why:
            world.referee.fail("founding", f"other mathematics are refused without saying which, or late: {end.why}")
        world.sights.see("other mathematics were refused")

    def _lost(self, what: str) -> None:
        self._world.referee.fail("saves", what)
