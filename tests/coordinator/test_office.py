"""A coordinator of its own: one job, an agent that comes and goes, and what a successor finds."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from regrow.agent.coordinator_line import CoordinatorLine
from regrow.coordinator.office import Office
from regrow.coordinator.store import Store
from regrow.core.errors import ConfigError, PeerError
from regrow.core.membership_config import MembershipConfig
from regrow.core.membership_effects import End
from regrow.core.messages import AGENT, Beat, Enlist, Exited, Notice, Refuse, StartWorker, StopWanted
from regrow.core.records import JobEnded, JobOpened, Refused, RosterMade
from regrow.core.roster import Endpoint, Member, Roster, Seat, Version
from regrow.shell.journal import Journal, read
from regrow.wire.tcp import Connection, connect

TOKEN = "ab" * 32
R0, R1 = Member("r0", 0), Member("r1", 0)
DEADLINE_S = 20.0
PLAN = Enlist(
    agent="one", job="run", command=("train.py",), config=MembershipConfig(replicas=("r0", "r1"), lanes=4, lease_s=3.0)
)


class Place:
    """An office in a folder; a second one there is its successor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.store = Store(folder)
        self.office = Office(self.store, Journal(folder / "journal", "coordinator"), self.said.append)

    async def open(self, port: int = 0) -> None:
        self.endpoint = await self.office.listen("127.0.0.1", port, TOKEN)
        self.running = asyncio.create_task(self.office.run())

    async def crash(self) -> None:
        """All that a killed process leaves behind, and nothing more."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.office.close()
        self.store.close()

    async def agent(self, plan: Enlist = PLAN) -> Connection:
        connection = await connect(self.endpoint, TOKEN, AGENT, DEADLINE_S)
        await connection.send(plan)
        return connection

    def facts(self, kind: type) -> list[Any]:
        accounts = list(read(self.folder / "journal"))
        return [line.what for account in accounts for line in account.lines if isinstance(line.what, kind)]


class Hands:
    """Carries out orders by noting them."""

    def __init__(self) -> None:
        self.started: list[Member] = []
        self.killed: list[Member] = []

    def start(self, member: Member, why: str, delay_s: float) -> None:
        self.started.append(member)

    def kill(self, member: Member, why: str) -> None:
        self.killed.append(member)


def line_to(endpoint: Endpoint, folder: Path, hands: Hands, said: list[str]) -> CoordinatorLine:
    return CoordinatorLine(
        endpoint, TOKEN, PLAN, hands, Journal(folder / "journal", "agent"), lambda text, _: said.append(text)
    )


def exited(member: Member) -> Exited:
    return Exited(member=member, how="killed by SIGKILL", clean=False, never_joined=False)


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story

    asyncio.run(bounded())


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_an_agent_that_comes_back_is_told_every_order_that_is_still_open(tmp_path: Path) -> None:
    async def story() -> None:
        place = Place(tmp_path)
        await place.open()
        agent = await place.agent()
        assert [(await agent.receive()).member for _ in "ab"] == [R0, R1]
        await agent.close()
        again = await place.agent()
        assert [(await again.receive()).member for _ in "ab"] == [R0, R1]
        await again.send(exited(R1))
        assert isinstance(await again.receive(), Notice)
        next_life = await again.receive()
        assert isinstance(next_life, StartWorker) and next_life.member == Member("r1", 1)
        third = await place.agent()
        assert [(await third.receive()).member for _ in "ab"] == [R0, Member("r1", 1)]
        await place.crash()

    run(story())


def test_a_successor_knows_the_plan_and_serves_no_other_job(tmp_path: Path) -> None:
    async def story() -> None:
        place = Place(tmp_path)
        await place.open()
        await (await place.agent()).receive()
        await place.crash()
        after = Place(tmp_path)
        assert after.office.has_job
        await after.open()
        other = await after.agent(Enlist(agent="two", job="x", command=(), config=PLAN.config))
        refusal = await other.receive()
        assert isinstance(refusal, Refuse) and "start one coordinator per job" in refusal.why
        agent = await after.agent()
        assert (await agent.receive()).member == R0
        assert [fact.lanes for fact in after.facts(JobOpened)] == [4], "opened once"
        await after.crash()

    run(story())


def test_a_roster_that_was_saved_and_not_noted_is_noted_by_the_successor(tmp_path: Path) -> None:
    async def story() -> None:
        place = Place(tmp_path)
        await place.open()
        await (await place.agent()).receive()
        await place.crash()
        store = Store(tmp_path)
        saved = store.load()
        assert saved is not None
        seat = Seat(member=R0, endpoint=Endpoint("h", 1), founder=True, lanes=(0, 1, 2, 3))
        roster = Roster(version=Version(1, 1), seats=(seat,), floor=0, cause="c")
        store.save(type(saved)(term=1, roster=roster, lives={"r0": 0, "r1": 0}))
        store.close()
        for _ in range(2):
            after = Place(tmp_path)
            await after.open()
            await (await after.agent()).receive()
            await after.crash()
        assert [fact.version for fact in after.facts(RosterMade)] == [Version(1, 1)], "once, not with every start"

    run(story())


def test_strangers_who_know_the_token_and_are_no_agent_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        place = Place(tmp_path)
        await place.open()
        early = await connect(place.endpoint, TOKEN, "r0.0", DEADLINE_S)
        with pytest.raises(PeerError):
            await early.receive()
        rude = await connect(place.endpoint, TOKEN, AGENT, DEADLINE_S)
        await rude.send(Beat(member=R0))
        with pytest.raises(PeerError):
            await rude.receive()
        agent = await place.agent()
        await agent.send(Beat(member=R0))
        whys = lambda: [fact.why for fact in place.facts(Refused)]  # noqa: E731
        await until(lambda: "Beat is no agent's report" in whys())
        assert whys()[:2] == ["no job runs here yet", "an agent began with Beat"]
        await place.crash()

    run(story())


def test_a_notice_says_over_the_line_whether_it_is_routine(tmp_path: Path) -> None:
    async def story() -> None:
        place = Place(tmp_path)
        await place.open()
        hands, said = Hands(), list[tuple[str, bool]]()
        journal = Journal(tmp_path / "journal", "agent")
        line = CoordinatorLine(
            place.endpoint, TOKEN, PLAN, hands, journal, lambda text, routine: said.append((text, routine))
        )
        await line.reach()
        line.open()
        await until(lambda: hands.started == [R0, R1])
        place.office._noticed("roster 1.1", True)
        place.office._noticed("r1 is given up", False)
        await until(lambda: said == [("roster 1.1", True), ("r1 is given up", False)])
        assert not line.is_away
        line.end(End(outcome="stopped", why="enough"))
        await line.close()
        await place.crash()

    run(story())


def test_a_line_tells_each_coordinator_everything_and_finds_the_next_one(tmp_path: Path) -> None:
    async def story() -> None:
        place = Place(tmp_path)
        await place.open()
        hands, said = Hands(), list[str]()
        line = line_to(place.endpoint, tmp_path, hands, said)
        await line.reach()
        line.open()
        await until(lambda: hands.started == [R0, R1])
        line.report(exited(R1))
        await until(lambda: Member("r1", 1) in hands.started)
        await place.crash()
        await until(lambda: any("is away: training goes on" in text for text in said))
        line.report(StopWanted())
        line.report(exited(R0))
        after = Place(tmp_path)
        await after.open(place.endpoint.port)
        await until(lambda: Member("r0", 1) in hands.started)
        saved = after.store.load()
        assert saved is not None and saved.stopping and saved.lives == {"r0": 1, "r1": 1}
        assert [text.split(": ")[-1] for text in said if "the coordinator at" in text] == [
            "training goes on, nobody can be replaced until it is back",
            "it hears of the stop once it is back",
            f"the coordinator at {place.endpoint} is here".split(": ")[-1],
        ]
        line.end(End(outcome="stopped", why="enough"))
        await line.close()
        assert (await after.running).why == "enough"
        assert [fact.why for fact in after.facts(JobEnded)] == ["enough"] * 2  # the agent's note and the coordinator's
        await after.office.close()
        after.store.close()

    run(story())


def test_an_end_is_told_to_an_agent_that_was_away(tmp_path: Path) -> None:
    async def story() -> None:
        place = Place(tmp_path)
        await place.open()
        agent = await place.agent()
        await agent.receive()
        await agent.send(Exited(member=R0, how="exited with code 64", clean=False, never_joined=True))
        await until(lambda: (saved := place.store.load()) is not None and saved.end is not None)
        await place.crash()
        after = Place(tmp_path)
        await after.open(place.endpoint.port)
        hands, said = Hands(), list[str]()
        line = line_to(after.endpoint, tmp_path, hands, said)
        await line.reach()
        line.open()
        end = await line.ended
        assert end.outcome == "failed" and "never called regrow.join()" in end.why
        await line.close()
        assert await after.running == end
        await after.office.close()
        after.store.close()

    run(story())


def test_another_jobs_coordinator_is_refused_before_anything_starts(tmp_path: Path) -> None:
    async def story() -> None:
        place = Place(tmp_path)
        await place.open()
        hands, said = Hands(), list[str]()
        journal = Journal(tmp_path / "journal", "agent")
        stranger = CoordinatorLine(place.endpoint, "cd" * 32, PLAN, hands, journal, lambda text, _: said.append(text))
        with pytest.raises(ConfigError, match="does not know this job's token"):
            await stranger.reach()
        await place.crash()

    run(story())
