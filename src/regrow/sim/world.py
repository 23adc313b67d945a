"""A whole job on virtual time: its processes, its network, its faults and its checks, all from one seed."""

from collections.abc import Callable

import msgspec

from regrow.core.budget import BudgetConfig
from regrow.core.lanes import Cell, missing
from regrow.core.listener import Record
from regrow.core.membership_config import MembershipConfig
from regrow.core.membership_effects import Founded
from regrow.core.messages import Contract
from regrow.core.order import mix
from regrow.core.records import Fact
from regrow.core.roster import Version
from regrow.core.speeds import SpeedConfig
from regrow.sim.chance import Chance
from regrow.sim.coordinator import Coordinator
from regrow.sim.custody import Custody
from regrow.sim.faults import Faults, losses, mishaps, overflows, plan, wishes
from regrow.sim.feeds import Feeds
from regrow.sim.groups import Groups
from regrow.sim.host import Agent
from regrow.sim.losses import Losses
from regrow.sim.mathematics import Reference
from regrow.sim.referee import Foul, Referee, Undetectable
from regrow.sim.rules import THE_RULES, Rules
from regrow.sim.sights import Sights
from regrow.sim.story import Story
from regrow.sim.timeline import Timeline
from regrow.sim.transfers import Transfers
from regrow.sim.vault import Generation

_PATIENCE_S = 600.0
"""After the last fault is over, every job comes to its end within this."""
_MOST_EVENTS = 200_000
_LONG_STEPS = 50
_VAULTED = 1018650
"""Which half of the jobs has a vault. By this number those do not whose seeds found a bug before there was one
(tests/sim/seeds.py): they still tell the same stories."""
_LIMITED = 101
"""Which jobs are brought back in vain less than five times: by this number none whose seed finds a bug or a mutant."""
_LOGGED = 16
"""Which half of those is an every-step job."""
_RARELY = 12
"""Steps from one save to the next: one that is missed is not made up for by the next."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The job that is simulated."""

    replicas: int
    lanes: int
    steps: int
    shrinks: bool = False
    spares: int = 0
    shadow: bool = False
    slow: str = ""
    """A replica that takes longer than the others."""
    poison: Cell | None = None
    """Kills whoever computes it."""
    saves: tuple[int, ...] | None = None
    """The intervals of saves; None: there is no vault."""
    logs: bool = False
    """It is an every-step job."""
    durable_every: int = 1
    """The interval of the place beyond memory."""


def _plan(seed: int, chance: Chance) -> Plan:
    """Of every eight jobs one shrinks, and two have a poisoned lane. Half have spares, which may be shadows; a third a
    slow replica; half have a vault, and half of these are every-step jobs. One of sixteen goes on long after its faults,
    so that whoever may join it must, and a fourth of those with a vault, so that what was decided to be saved is."""
    job = Plan(replicas=chance.whole(3, 5), lanes=chance.whole(2, 12), steps=chance.whole(3, 10), shrinks=seed % 8 == 5)
    poison = Cell(mix(seed, 1) % job.steps, mix(seed, 2) % job.lanes) if seed % 8 in (6, 7) else None
    spares, shadow = (0, 0, 1, 2)[mix(seed, 5) % 4], mix(seed, 6) % 2 == 0
    slow = f"r{mix(seed, 8) % job.replicas}" if mix(seed, 7) % 3 == 0 else ""
    steps = _LONG_STEPS if seed % 16 == 3 else job.steps
    saves = ((), (1,), (1,), (2,), (3,), (2, 5))[mix(seed, 12) % 6] if mix(seed, _VAULTED) % 2 else None
    if saves is not None and mix(seed, 15) % 4 == 0:
        steps, saves = _LONG_STEPS, (_RARELY,)
    logs = saves is not None and mix(seed, _LOGGED) % 2 == 0
    job = msgspec.structs.replace(job, saves=saves, logs=logs, durable_every=1 + mix(seed, 13) % 3)
    return msgspec.structs.replace(job, steps=steps, poison=poison, spares=spares, shadow=shadow, slow=slow)


def _resumed(plan: Plan, chance: Chance) -> Plan:
    """The same job by another number of replicas."""
    return msgspec.structs.replace(plan, replicas=chance.whole(1, 5), slow="", saves=plan.saves or ())


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a simulation went."""

    seed: int
    outcome: str
    events: int
    faults: tuple[str, ...]
    virtual_s: float
    rosters: int
    planned: int
    """Of these rosters, those that were planned."""
    sights: dict[str, int]
    """What it has been through, and how often."""
    trace: int


class SeedFailed(Exception):
    """A seed broke a rule. The message is its story, and how to see it again."""

    def __init__(self, seed: int, faults: int, rule: str, what: str, story: str) -> None:
        replay = f"python -m regrow.sim --seed {seed} --faults {faults} --verbose"
        super().__init__(f"{story}\n\nseed {seed} broke {rule}: {what}\nreplay: {replay}")
        self.seed = seed
        self.rule = rule
        self.what = what


class Legacy(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier run of a job left in its store, for another one with `--resume`."""

    plan: Plan
    generation: Generation


class World:
    """Owns everything there is, and lets it happen."""

    def __init__(
        self,
        seed: int,
        faults: int,
        rules: Rules,
        verbose: bool,
        journal: Callable[[float, str, Fact], None],
        legacy: Legacy | None = None,
    ) -> None:
        self.seed = seed
        self.journal = journal
        self.chance = chance = Chance(seed)
        self.rules = rules
        self.plan = _plan(seed, chance) if legacy is None else _resumed(legacy.plan, chance)
        self.reference = Reference(seed, self.plan.lanes) if legacy is None else legacy.generation.line.branch(0)
        self._lines = [(Version(0, 0), self.reference)]
        """From which term on the job takes which line: where lanes may be left out, what is computed again may differ."""
        others = legacy is not None and mix(seed, 21) % 3 == 0
        self.contract = Contract(terms={"lanes": str(self.plan.lanes), "lr": "other" if others else "one"})
        self.is_new_mathematics = mix(seed, 22) % 2 == 0
        self.timeline = Timeline()
        self.story = Story(lambda: self.timeline.now, keep=120, say=print if verbose else None)
        self.referee = Referee(self)
        self.sights = Sights(self)
        self.groups = Groups(self)
        self.transfers = Transfers(self, self.groups)
        self.custody = Custody(self)
        self.logs = rules.logs(self)
        self.vault = rules.vault(self, None if legacy is None else legacy.generation)
        if legacy is not None:
            self.custody.begins_with(legacy.generation)
        self.feeds = Feeds(self, room=chance.one_of((2, 3, 100)))
        self.agent = Agent(self)
        self.budget = budget = BudgetConfig(
            max_restarts=chance.one_of((1, 3, 20, 20)), backoff_cap_s=chance.one_of((2.0, 15.0))
        )
        most = (0, 1, 2, *[5] * 13)[mix(seed, _LIMITED) % 16]
        self.losses = Losses(self, most)
        replicas = tuple(f"r{i}" for i in range(self.plan.replicas))
        config = MembershipConfig(
            replicas=replicas,
            lanes=self.plan.lanes,
            lease_s=6.0,
            grace_s=1.0,
            budget=budget,
            min_replicas=min(self.plan.replicas, (3, 1, 1, 1, 2)[seed % 5]),
            spares=self.plan.spares,
            shadow=self.plan.shadow,
            speeds=SpeedConfig(rest_steps=2),
            on_loss="shrink" if self.plan.shrinks else "redistribute",
            on_poison="skip" if seed % 8 == 6 else "stop",
            keeps=self.plan.saves is not None,
            max_job_restarts=most,
            logs=self.plan.logs,
            resumes=legacy is not None,
            new_mathematics=self.is_new_mathematics,
        )
        self.coordinator = Coordinator(self, config)
        asked = wishes(Chance(mix(seed, 3)), most=4) if faults and mix(seed, 4) % 2 else ()
        befalls = mishaps(Chance(mix(seed, 14)), most=5) if faults and self.plan.saves is not None else ()
        slow = overflows(Chance(mix(seed, 23))) if faults and mix(seed, 24) % 3 == 0 else ()
        strikes = losses(Chance(mix(seed, 18)), most=4) if faults and self.plan.logs else ()
        self.faults = Faults(self, (*plan(chance, faults), *asked, *befalls, *slow, *strikes))

    def line(self, version: Version) -> Reference:
        """Of whoever goes on under this roster."""
        return max((each for each in self._lines if each[0].term <= version.term), key=lambda each: each[0])[1]

    def founded(self, founded: Founded) -> None:
        origin = founded.origin
        line = self.vault.origin(origin.root).line
        for record in self.logs.replayed:
            # Whoever held it, or had committed it, is gone: that its log is whole is what commits it.
            line = self.line(record.attempt)
            line.digest(record.step, self._left_out(record))
        self._lines.append((founded.version, line.branch(origin.through)))
        self.losses.founded(origin.through)
        self.referee.founded(origin.through)

    def _left_out(self, record: Record) -> frozenset[int]:
        return missing(self.plan.lanes, [node for nodes in record.holdings for node in nodes]) or frozenset()

    def run(self) -> str:
        """Returns how the job ended; raises Foul when it broke a rule."""
        self.story.note("sim", str(self.plan))
        timeline, coordinator, faults = self.timeline, self.coordinator, self.faults
        coordinator.open()
        while coordinator.ended is None:
            more = timeline.advance()
            waited_s = timeline.now - faults.quiet_s
            if not more or waited_s > _PATIENCE_S or timeline.count > _MOST_EVENTS:
                self.referee.stuck(waited_s)
        self.referee.ended(coordinator.ended)
        return coordinator.ended.outcome


def simulate(
    seed: int,
    *,
    faults: int = 6,
    rules: Rules = THE_RULES,
    verbose: bool = False,
    journal: Callable[[float, str, Fact], None] = lambda now, who, fact: None,
) -> Report:
    """Run one seed to its end; SeedFailed tells the story when a check fails. `journal` gets every fact, with its time."""
    first = World(seed, faults, rules, verbose, journal)
    report = _run(first, seed, faults)
    if report.outcome not in ("state-lost", "stopped", "failed") or first.vault.durable is None:
        return report
    # With its own journals: what was seen in the first run is counted.
    legacy = Legacy(plan=first.plan, generation=first.vault.durable)
    world = World(mix(seed, 20), min(faults, 3), rules, verbose, lambda now, who, fact: None, legacy)
    world.sights.counts.update(report.sights)
    world.sights.see("a job was resumed by another run")
    world.story.trace = report.trace
    second = _run(world, seed, faults)
    return msgspec.structs.replace(report, sights=second.sights, trace=second.trace, events=report.events + second.events)


def _run(world: World, seed: int, faults: int) -> Report:
    try:
        outcome = world.run()
    except Undetectable:
        outcome = "undetectable"
    except Foul as foul:
        raise SeedFailed(seed, faults, foul.rule, str(foul), world.story.tell()) from None
    return Report(
        seed=seed,
        outcome=outcome,
        events=world.timeline.count,
        faults=tuple(world.faults.struck),
        virtual_s=world.timeline.now,
        rosters=world.referee.rosters,
        planned=world.referee.planned,
        sights=dict(world.sights.counts),
        trace=world.story.trace,
    )
