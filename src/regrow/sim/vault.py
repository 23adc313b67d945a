"""A model of the host's vault: portions come in, generations become whole or void, and one is found for a job to begin from.

It outlives workers and is killed by itself: then saves under way are lost, and what is whole stays, as in memory that the
agent holds. The tiers beyond memory are one place that lags behind. Its own chance: a job without one is not disturbed.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from regrow.core.effects import Recall, Save
from regrow.core.events import Recalled, SaveWished
from regrow.core.log import Chain
from regrow.core.membership_effects import Seek
from regrow.core.order import mix
from regrow.core.origin import BEGINNING, LOGS, MEMORY, Origin, mathematics
from regrow.core.records import (
    OriginFound,
    OriginPassedOver,
    SaveDurable,
    SaveVoided,
    StateKept,
    StateRecalled,
    VaultEnded,
    VaultStarted,
)
from regrow.core.roster import NO_VERSION, Member, Version
from regrow.core.saves import Urgency, takes
from regrow.sim.chance import Chance
from regrow.sim.mathematics import Reference

if TYPE_CHECKING:
    from regrow.sim.process import Process
    from regrow.sim.world import World

Key = tuple[int, Version]


class Generation:
    """The state of one step, from the portions that came."""

    def __init__(
        self, step: int, state: int, line: Reference, terms: Mapping[str, str], since: Version = NO_VERSION
    ) -> None:
        self.step = step
        self.since = since
        """The version that it was saved under: what is in a log of an older one is not replayed onto it."""
        self.state = state
        self.line = line
        self.terms = dict(terms)

    @property
    def root(self) -> str:
        return str(self.state)


class Gathering:
    """A save under way."""

    def __init__(self, save: Save, line: Reference) -> None:
        self.save = save
        self.line = line
        self.came: dict[Member, int] = {}
        """What each gave: with symbols for tensors, the whole of the state that it copied."""
        self.givers: list[Process] = []
        self.is_labelled = False


class Vault:
    def __init__(self, world: "World", durable: Generation | None = None) -> None:
        self._world = world
        self._chance = Chance(mix(world.seed, 10))
        self.up = True
        self._life = 0
        self.newest: Generation | None = None
        """In memory."""
        self._harmed: Generation | None = None
        """What was newest there; its label still says what it was."""
        self.durable = durable
        self._taken = durable.step if durable is not None else 0
        """The newest step that the place has taken, or that the job began from."""
        self._origins: dict[str, Generation] = {}
        self._gathering: dict[Key, Gathering] = {}
        self._has_kept = False
        """Something was whole in memory: logs have given up what lies before it."""

    @property
    def is_gathering(self) -> bool:
        return bool(self._gathering)

    # From workers

    def save(self, process: "Process", effect: Save) -> None:
        """Copied now, which the next optimizer step waits for; here a while later."""
        state = process.state
        assert state is not None, "whoever saves holds the state"
        process.owes = effect.step if effect.urgency is Urgency.LAST else None
        self._world.timeline.after(self._chance.soon_s(), process, self._deposit, process, effect, state, self._life)

    def _deposit(self, process: "Process", effect: Save, state: int, life: int) -> None:
        if not self.up or life != self._life:
            self._lost(process, effect, state)
            return
        key = effect.step, effect.version
        gathering = self._gathering.get(key)
        if gathering is None:
            gathering = self._gathering[key] = Gathering(effect, process.line)
        gathering.came[process.member] = state
        gathering.givers.append(process)
        for other in [g for g in self._gathering.values() if g.save.step < effect.step]:
            if process.member in other.save.members and process.member not in other.came:
                self._void(other, f"{process.member} is at step {effect.step} by now")
        self._look(gathering)

    def _lost(self, process: "Process", effect: Save, state: int) -> None:
        """The vault was killed while this was on its way: a last save is begun again with its next life."""
        if effect.urgency is Urgency.LAST:
            self._world.timeline.after(0.5, process, self._deposit, process, effect, state, self._life)
        else:
            self._tell_void(process)

    def leave(self, process: "Process") -> None:
        """The process is gone, with its line."""
        for gathering in list(self._gathering.values()):
            self._look(gathering)

    def _look(self, gathering: Gathering) -> None:
        """Is it whole, or will it never be?"""
        save, processes = gathering.save, self._world.agent.processes
        if gathering.is_labelled:
            return
        if self._has_all(gathering):
            gathering.is_labelled = True
            self._world.timeline.after(self._chance.soon_s(), None, self._label, gathering, self._life)
            return
        lacking = [m for m in save.members if m not in gathering.came and not processes[m].alive]
        if not lacking:
            return
        givers = [giver for giver in gathering.givers if giver.alive]
        if save.urgency is not Urgency.LAST or not givers:
            self._void(gathering, f"{lacking[0]} is gone")
            return
        # Whoever hears it first gives what is lacking as well: all hold the same state.
        giver = self._chance.one_of(givers)
        self._world.sights.see("a last save was completed by others")
        self._world.timeline.after(self._chance.soon_s(), giver, self._give, gathering, giver, lacking, self._life)

    def _give(self, gathering: Gathering, giver: "Process", lacking: list[Member], life: int) -> None:
        if self._life == life and giver.state is not None:
            gathering.came.update(dict.fromkeys(lacking, giver.state))
            self._look(gathering)

    def _has_all(self, gathering: Gathering) -> bool:
        return set(gathering.came) == set(gathering.save.members)

    def _label(self, gathering: Gathering, life: int) -> None:
        """Written last: from here on it is a generation."""
        world, save = self._world, gathering.save
        if self._life != life:
            return
        self._gathering.pop((save.step, save.version), None)
        state = next(iter(gathering.came.values()))
        generation = Generation(save.step, state, gathering.line, world.contract.terms, save.version)
        world.custody.kept(generation, gathering)
        world.sights.see("a save became whole")
        fact = StateKept(step=save.step, root=generation.root, size_bytes=8, seconds=0.0)
        world.referee.fact("vault", fact)
        for other in [g for g in self._gathering.values() if g.save.step <= save.step]:
            del self._gathering[other.save.step, other.save.version]
            gathering.givers += other.givers
        for giver in gathering.givers:
            if giver.owes is not None and giver.owes <= save.step:
                giver.owes = None
        if self.newest is None or generation.step >= self.newest.step:
            self.newest, self._harmed, self._has_kept = generation, None, True
            world.logs.free(generation.step)
            self._lag(generation, save.urgency)

    # What is void

    def _void(self, gathering: Gathering, why: str) -> None:
        save, world = gathering.save, self._world
        if self._gathering.pop((save.step, save.version), None) is None:
            return
        world.sights.see("a save was void")
        world.referee.fact("vault", SaveVoided(step=save.step, why=why))
        for giver in gathering.givers:
            self._tell_void(giver)

    def _tell_void(self, process: "Process") -> None:
        event = SaveWished(urgency=Urgency.DUE)
        self._world.timeline.after(self._chance.soon_s(), process, process.feed, event)

    def kill(self, down_s: float) -> None:
        if not self.up:
            return
        self.up, self._life = False, self._life + 1
        if self._gathering:
            self._world.sights.see("the vault was killed with a save under way")
        self._world.referee.fact("agent", VaultEnded(pid=0, how="killed by signal 9"))
        lost, self._gathering = list(self._gathering.values()), {}
        self._world.timeline.after(down_s, None, self._rise, lost)

    def perish(self) -> None:
        """With its agent, and all memory of the host: what lay there is read by nobody any more, but for the checks."""
        self.up, self._life = False, self._life + 1

    def spoil(self) -> None:
        """What is in memory is harmed: seen when it is needed. While a founding is open it is held to its digest again."""
        world = self._world
        if not world.plan.logs or not world.referee.rosters or world.sights.is_founding or world.referee.is_recalling:
            return
        world.sights.see("memory was harmed in an every-step job")
        where = LOGS if self.newest is None or self._chance.happens(0.5) else MEMORY
        world.custody.spoiled(self.newest if where == MEMORY else None)
        world.referee.fact("vault", OriginPassedOver(step=0, where=where, why="another digest"))
        if where == LOGS:
            world.logs.tear()
        else:
            self._harmed, self.newest = self.newest, None

    def _rise(self, lost: list[Gathering]) -> None:
        """Workers come back and name the saves that they have heard nothing of."""
        self.up = True
        self._world.referee.fact("agent", VaultStarted(pid=0, incarnation=self._life))
        for gathering in lost:
            for giver in gathering.givers:
                if giver.alive:
                    self._lost(giver, gathering.save, gathering.came[giver.member])
        if self.newest is not None:
            self._lag(self.newest, Urgency.DUE)

    # Beyond memory

    def _lag(self, generation: Generation, urgency: Urgency) -> None:
        if takes(generation.step, self._world.plan.durable_every, self._taken, urgency):
            delay_s = self._chance.between(0.1, 3.0)
            self._world.timeline.after(delay_s, None, self._make_durable, generation, self._life)

    def _make_durable(self, generation: Generation, life: int) -> None:
        if self._life != life or (self.durable is not None and self.durable.step >= generation.step):
            return
        self.durable, self._taken = generation, generation.step
        fact = SaveDurable(step=generation.step, url="store", term=1, number=1, size_bytes=8, seconds=0.0)
        self._world.referee.fact("vault", fact)

    # Origins

    def seek(self, seek: Seek, answer: Callable[[Origin | None, dict[str, str]], None]) -> None:
        """The newest that is whole, nearest first."""
        self._world.timeline.after(self._chance.soon_s() * 4.0, None, self._seek, seek, answer)

    def _seek(self, seek: Seek, answer: Callable[[Origin | None, dict[str, str]], None]) -> None:
        if not self.up or self._is_labelling():
            self._world.timeline.after(0.5, None, self._seek, seek, answer)
            return
        found = self._found(seek.step)
        if found is None:
            self._begin_again(answer)
            return
        where = MEMORY if found is self.newest else "store"
        if found is not self.newest:
            found = Generation(found.step, found.state, found.line, found.terms, self._since(found, seek))
        self.newest, self._harmed, self._has_kept = found, None, True
        self._answer(found, where, answer)

    def _since(self, found: Generation, seek: Seek) -> Version:
        """Of a state from a place."""
        harmed = self._harmed
        if harmed is not None and (harmed.step, harmed.root) == (found.step, found.root):
            return harmed.since
        return Version(seek.number, 0)

    def _is_labelling(self) -> bool:
        """What becomes whole after the answer would be gone back behind, and would take records along that it counts on."""
        return any(each.is_labelled for each in self._gathering.values())

    def _begin_again(self, answer: Callable[[Origin | None, dict[str, str]], None]) -> None:
        """From what the job itself began from, where the logs show that no committed step is lost by that."""
        world = self._world
        beginning = Generation(0, world.reference.states[0], world.reference, {})
        if not world.logs.root or not self._is_provable(beginning):
            answer(None, {})
            return
        self._answer(beginning, BEGINNING, answer)

    def _is_provable(self, beginning: Generation) -> bool:
        return not self._has_kept and self._follow(beginning).beyond is None

    def _answer(self, found: Generation, where: str, answer: Callable[[Origin | None, dict[str, str]], None]) -> None:
        self._origins[found.root] = found
        chain = self._follow(found)
        self._world.logs.found(chain)
        origin = Origin(step=found.step, root=found.root, where=where, records=len(chain.records))
        fact = OriginFound(step=found.step, root=found.root, where=where, size_bytes=8, seconds=0.0)
        self._world.referee.fact("vault", fact)
        answer(origin, mathematics(found.terms))

    def _follow(self, found: Generation) -> Chain:
        chain = self._world.logs.chain(found.step, found.since)
        if chain.beyond is not None:
            self._world.sights.see("a log spoke of steps behind one that was harmed")
        return chain

    def _found(self, step: int | None) -> Generation | None:
        whole = [each for each in (self.newest, self.durable) if each is not None and step in (None, each.step)]
        return max(whole, key=lambda each: each.step, default=None)

    def origin(self, root: str) -> Generation:
        return self._origins[root]

    def recall(self, process: "Process", effect: Recall) -> None:
        if effect.origin.is_beginning and str(process.state) != effect.origin.root:
            self._world.referee.fail("log", f"{process.name} begins from {process.state}, its script built another state")
        process.state = None  # bytes are being written over it
        self._world.timeline.after(process.work_s(), process, self._recall, process, effect)

    def _recall(self, process: "Process", effect: Recall) -> None:
        if not self.up:
            self._world.timeline.after(0.5, process, self._recall, process, effect)
            return
        found, origin = self._origins[effect.origin.root], effect.origin
        fact = StateRecalled(version=effect.version, step=origin.step, digest=found.root, size_bytes=8, seconds=0.0)
        process.load(found.state, origin.step, fact, self._world.line(effect.version))
        if origin.records:
            self._world.sights.see("a founder has records to replay")
        process.answer(Recalled(version=effect.version))
