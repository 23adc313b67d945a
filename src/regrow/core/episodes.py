"""What went wrong in a job: each failure, what was decided, what it cost, and when everyone was back.

An episode is one failure, or several that the same roster answered: two replicas that die at once, or a third while the
others still agree on the loss of the first, cost one interruption. Costs are what the journals show:

- the stall is the time from the moment a failure was noticed until every survivor knew what was left to compute (for a
  silent member, from the last progress anyone made). Slower steps while a replica is away are not in it.
- a lane counts as computed again when it was computed under more than one roster for the same step. A lane that was cut
  off in its middle leaves no fact and is not counted.
- the job is back at full strength once every replica that is to work has a seat, and the state.

Clocks are used for durations, and to list episodes in order; never to decide which facts belong together.
"""

from bisect import bisect_right

import msgspec

from regrow.core.chronicle import Chronicle, Made
from regrow.core.culprits import Culprit, culprits
from regrow.core.founding import Founding, founding
from regrow.core.records import LanePoisoned, RosterAdopted
from regrow.core.roster import Member
from regrow.core.save_story import SaveStory

_NS = 1e9


class Return(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a replica that failed: a restart, or its end."""

    replica: str
    member: str | None = None
    """The next life; None when there is none."""
    delay_s: float = 0.0
    used: int | None = None
    """Restarts within the window, of this replica and of the job, and their limits."""
    limit: int | None = None
    job_used: int | None = None
    job_limit: int | None = None
    window_s: float | None = None
    donors: tuple[str, ...] = ()
    """Who healed it."""
    lost: str | None = None
    """Why it is not restarted."""
    is_given_up: bool = False
    """It is not, or the next lives failed until it was not restarted any more."""
    left: int | None = None
    needed: int | None = None
    """Replicas that may still run, and --min-replicas."""


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """From 1, in the order in which they were noticed."""
    cause: str
    """The id under which the journals speak of it."""
    at: float
    """Wall clock, seconds."""
    after_s: float
    """Since the job's first fact."""
    culprits: tuple[Culprit, ...]
    """Empty when a connection broke and everyone lives."""
    roster: str | None
    """Under which the survivors went on; None when nobody waited for the culprits, or nobody was left."""
    why: str | None
    """The coordinator's reason for it."""
    survivors: tuple[str, ...]
    step: int | None
    """The step in doubt."""
    resolved: str | None
    """What the survivors made of it."""
    stall_s: float | None
    """None when nobody stood still, or when it is not over."""
    recomputed_lanes: int
    recomputed_steps: float
    """The same as a share of a step."""
    returns: tuple[Return, ...]
    restored_s: float | None
    """From the failure to full strength; None when that did not come."""
    is_over: bool
    """False while the survivors, or a restarted replica, are still on their way."""
    founding: Founding | None = None
    """Nobody was left, and the job was founded again from a saved state."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    failures: int
    """Members that failed, and broken connections."""
    by_kind: dict[str, int]
    by_replica: dict[str, int]
    lost: dict[str, str]
    """Replicas that were given up, and why."""
    stall_s: float
    """Of all episodes, overlaps counted once."""
    training_s: float
    """From the first roster to the end, or to the last fact."""
    weakened_s: float
    """Time of it during which a replica was missing."""
    recomputed_lanes: int
    recomputed_steps: float
    worst: int | None
    """The episode with the longest stall."""


class DataLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A data worker that was replaced: the replica lost nothing but time."""

    member: str
    """Whose it was."""
    at: float
    """Wall clock, seconds."""
    pid: int
    how: str
    making: str | None
    """The microbatch it was at, in words."""
    losses: int
    """Data workers lost at that microbatch so far."""


class WrongState(msgspec.Struct, frozen=True, kw_only=True):
    """A donor's state, or what it sent of it, was not that of the others. The joiner has it from them."""

    donor: str
    joiner: str
    at: float
    """Wall clock, seconds."""
    step: int


class Tale(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    replicas: tuple[str, ...]
    steps: int
    started_at: float | None
    took_s: float
    outcome: str | None
    """As in JobEnded; None when nobody noted an end."""
    why: str | None
    summary: Summary
    episodes: tuple[Episode, ...]
    poisoned: tuple[LanePoisoned, ...] = ()
    """Lanes that killed the replicas that computed them, and what was decided."""
    data_workers: tuple[DataLoss, ...] = ()
    """Those that were replaced, in the order noticed."""
    wrong_states: tuple[WrongState, ...] = ()
    """What joiners found when they compared donors."""
    resumed: Founding | None = None
    """From what the job began; None: from step 0."""
    saves: SaveStory | None = None
    """None: it saved nothing."""
    incomplete: tuple[str, ...]
    """Processes whose journals are not whole: there may have been more than is told here."""


def tell(chronicle: Chronicle) -> Tale:
    episodes, spans = _Episodes(chronicle).build()
    first, last = chronicle.first, chronicle.ended or chronicle.last
    began = chronicle.rosters[0].line.ns if chronicle.rosters else None
    training_s = max(0.0, (last.ns - began) / _NS) if last is not None and began is not None else 0.0
    return Tale(
        replicas=tuple(sorted(chronicle.replicas)),
        steps=chronicle.steps,
        started_at=first.at if first is not None else None,
        took_s=_seconds(first.ns, last.ns) if first is not None and last is not None else 0.0,
        outcome=chronicle.end.outcome if chronicle.end is not None else None,
        why=chronicle.end.why if chronicle.end is not None else None,
        summary=_sum_up(chronicle, episodes, spans, training_s),
        episodes=episodes,
        poisoned=tuple(chronicle.poisoned),
        data_workers=_data_losses(chronicle),
        wrong_states=tuple(
            WrongState(donor=str(donor), joiner=line.who, at=line.at, step=fact.step)
            for line, fact in chronicle.blaming
            for donor in fact.blamed
        ),
        resumed=founding(chronicle, chronicle.rosters[0].roster.version) if chronicle.rosters else None,
        saves=chronicle.saves.story(chronicle.ended),
        incomplete=tuple(sorted(chronicle.incomplete)),
    )


def _data_losses(chronicle: Chronicle) -> tuple[DataLoss, ...]:
    return tuple(
        DataLoss(
            member=line.who,
            at=line.at,
            pid=fact.pid,
            how=fact.how,
            making=str(fact.making) if fact.making is not None else None,
            losses=fact.losses,
        )
        for line, fact in sorted(chronicle.data_workers, key=lambda found: (found[0].ns, found[0].who))
    )


class _Spans(msgspec.Struct, kw_only=True):
    """Intervals of the host's monotonic clock."""

    stalls: list[tuple[int, int]] = []
    weakened: list[tuple[int, int]] = []


class _Case(msgspec.Struct, kw_only=True):
    """Failures that belong together, before their costs are known."""

    culprits: list[Culprit]
    start: int | None
    """The first roster that answers one of them, as an index; None for members without a seat."""
    settled: int | None
    """The first roster since then that all its members adopted."""


class _Episodes:
    def __init__(self, chronicle: Chronicle) -> None:
        self._chronicle = chronicle
        self._answers: dict[str, int] = {}
        for index, made in enumerate(chronicle.rosters):
            self._answers.setdefault(made.roster.cause, index)

    def build(self) -> tuple[tuple[Episode, ...], _Spans]:
        cases = sorted(self._cases(), key=lambda case: self._noticed(case)[1])
        again = self._computed_again(cases)
        spans = _Spans()
        told = [self._episode(number, case, again.get(number - 1, 0), spans) for number, case in enumerate(cases, 1)]
        return tuple(told), spans

    # Which failures belong together

    def _cases(self) -> list[_Case]:
        cases: dict[object, _Case] = {}
        for culprit in culprits(self._chronicle):
            answers = [self._answers.get(f"{what}-{culprit.member}") for what in ("hung", "evicted", "died")]
            start = min((index for index in answers if index is not None), default=None)
            if start is None:
                start = self._chronicle.refounding(_member(culprit))
            settled = self._settled(start)
            # A seat in the last roster, and no other one since: nobody was left to go on with, or it has just happened.
            is_unanswered = start is None and culprit.is_seated
            key: object = ("roster", settled) if start is not None or is_unanswered else culprit.member
            case = cases.setdefault(key, _Case(culprits=[], start=start, settled=settled))
            case.culprits.append(culprit)
            case.start = start if case.start is None else min(case.start, start if start is not None else case.start)
        for index, made in enumerate(self._chronicle.rosters):
            # Those who have not left at the job's end re-form too, but then somebody is missing.
            is_anew = made.roster.cause in ("complaint", "stalled") and index
            if is_anew and made.members == self._chronicle.rosters[index - 1].members:
                settled = self._settled(index)
                cases.setdefault(("roster", settled), _Case(culprits=[], start=index, settled=settled))
        return list(cases.values())

    def _settled(self, start: int | None) -> int | None:
        rosters = self._chronicle.rosters
        if start is None:
            return None
        return next((i for i in range(start, len(rosters)) if self._chronicle.is_settled(rosters[i])), None)

    def _noticed(self, case: _Case) -> tuple[float, int]:
        """On the wall clock and on the monotonic one."""
        if case.culprits:
            first = min(case.culprits, key=lambda culprit: culprit.ns)
            return first.at, first.ns
        assert case.start is not None, "a case without culprits comes from a roster"
        line = self._chronicle.rosters[case.start].line
        return line.at, line.ns

    # What they cost

    def _computed_again(self, cases: list[_Case]) -> dict[int, int]:
        """Lanes computed more than once, each given to the last case whose rosters had begun by then."""
        starts = sorted((case.start, number) for number, case in enumerate(cases) if case.start is not None)
        index_of = {made.roster.version: index for index, made in enumerate(self._chronicle.rosters)}
        under: dict[tuple[int, int], list[int]] = {}
        for life in self._chronicle.lives.values():
            for version, step, lane in life.computed:
                if version in index_of:
                    under.setdefault((step, lane), []).append(index_of[version])
        again: dict[int, int] = {}
        for indices in under.values():
            for index in sorted(indices)[1:]:
                place = bisect_right(starts, (index, len(cases))) - 1
                if place >= 0:
                    number = starts[place][1]
                    again[number] = again.get(number, 0) + 1
        return again

    def _episode(self, number: int, case: _Case, again: int, spans: _Spans) -> Episode:
        chronicle = self._chronicle
        at, noticed_ns = self._noticed(case)
        made = chronicle.rosters[case.settled] if case.settled is not None else None
        answer = chronicle.rosters[case.start] if case.start is not None else None
        stall = self._stall(case, noticed_ns)
        if stall is not None:
            spans.stalls.append(stall)
        returns = tuple(self._return(culprit) for culprit in sorted(case.culprits, key=_by_time))
        full_ns = self._full_ns(case, returns)
        end = chronicle.ended or chronicle.last
        weak_until = full_ns or (end.ns if end is not None else noticed_ns)
        if case.culprits:
            spans.weakened.append((noticed_ns, max(noticed_ns, weak_until)))
        seen = self._adopted(made)
        return Episode(
            number=number,
            cause=answer.roster.cause if answer is not None else f"died-{case.culprits[0].member}",
            at=at,
            after_s=_seconds(chronicle.first.ns, noticed_ns) if chronicle.first is not None else 0.0,
            culprits=tuple(sorted(case.culprits, key=_by_time)),
            roster=str(made.roster.version) if made is not None else None,
            why=answer.roster.why if answer is not None else None,
            survivors=tuple(sorted(map(str, self._survivors(case)))),
            step=seen[0] if seen is not None else None,
            resolved=seen[1] if seen is not None else None,
            stall_s=_seconds(*stall) if stall is not None else None,
            recomputed_lanes=again,
            recomputed_steps=again / chronicle.lanes if chronicle.lanes else 0.0,
            returns=returns,
            restored_s=_seconds(noticed_ns, full_ns) if full_ns is not None else None,
            is_over=chronicle.ended is not None
            or ((case.start is None or made is not None) and (full_ns is not None or all(r.is_given_up for r in returns))),
            founding=self._founded(case),
        )

    def _founded(self, case: _Case) -> Founding | None:
        """Again, and not by the first roster, which answers no failure."""
        if not case.start:
            return None
        stop = case.settled + 1 if case.settled is not None else None
        found = (founding(self._chronicle, made.roster.version) for made in self._chronicle.rosters[case.start : stop])
        return next((one for one in found if one is not None), None)

    def _survivors(self, case: _Case) -> frozenset[Member]:
        if case.start is None or case.settled is None:
            return frozenset()
        rosters = self._chronicle.rosters
        before = rosters[case.start - 1].members if case.start else rosters[0].members
        return rosters[case.settled].members & before

    def _stall(self, case: _Case, noticed_ns: int) -> tuple[int, int] | None:
        if case.settled is None or case.start is None:
            return None
        rosters, survivors = self._chronicle.rosters, self._survivors(case)
        version = rosters[case.settled].roster.version
        if self._founded(case) is not None:
            survivors = rosters[case.settled].members  # nobody survived: until those who founded it again go on
        lives = [life for member in survivors if (life := self._chronicle.life(member)) is not None]
        ends = [life.adopted[version].ns for life in lives if version in life.adopted]
        if not ends:
            return None
        begin_ns = noticed_ns
        if any(culprit.kind in _SILENT for culprit in case.culprits):
            made_ns = rosters[case.start].line.ns
            progress = [_before(life.progress_ns, made_ns) for life in lives]
            begin_ns = min(noticed_ns, max((ns for ns in progress if ns is not None), default=noticed_ns))
        return begin_ns, max(begin_ns, *ends)

    def _adopted(self, made: Made | None) -> tuple[int, str] | None:
        """The step in doubt and what became of it, in the words of any member."""
        if made is None:
            return None
        for member in sorted(made.members):
            life = self._chronicle.life(member)
            line = life.adopted.get(made.roster.version) if life is not None else None
            if line is not None and isinstance(line.what, RosterAdopted):
                return line.what.step, line.what.why
        return None

    # What became of them

    def _return(self, culprit: Culprit) -> Return:
        chronicle, replica = self._chronicle, culprit.replica
        following = Member(replica, _member(culprit).incarnation + 1)
        planned = chronicle.planned.get(following)
        if planned is None and following not in chronicle.started:
            lost = chronicle.lost.get(replica)
            if lost is None:
                return Return(replica=replica)
            fact = lost[1]
            return Return(replica=replica, lost=fact.why, is_given_up=True, left=fact.left, needed=fact.needed)
        life = chronicle.life(following)
        donors = tuple(map(str, life.donors)) if life is not None else ()
        if planned is None:
            return Return(replica=replica, member=str(following), donors=donors, is_given_up=replica in chronicle.lost)
        return Return(
            replica=replica,
            is_given_up=replica in chronicle.lost,
            member=str(following),
            delay_s=planned.delay_s,
            used=planned.used,
            limit=planned.limit,
            job_used=planned.job_used,
            job_limit=planned.job_limit,
            window_s=planned.window_s,
            donors=donors,
        )

    def _full_ns(self, case: _Case, returns: tuple[Return, ...]) -> int | None:
        """The first moment since at which every replica that is to work, the culprits' too, takes part."""
        if any(found.lost for found in returns):
            return None
        gone = {culprit.replica: _member(culprit).incarnation for culprit in case.culprits}
        for made in self._chronicle.rosters[case.settled or case.start or 0 :]:
            lives = {member.replica: member.incarnation for member in made.members}
            wanted = self._chronicle.wanted(made)
            if all(lives.get(replica, -1) > last for replica, last in gone.items() if replica in wanted):
                full_ns = self._chronicle.full_ns(made)
                if full_ns is not None:
                    return full_ns
        return None


_SILENT = frozenset({"eviction", "hang"})
"""Kinds in which the others stood still before anybody noticed."""


def _sum_up(chronicle: Chronicle, episodes: tuple[Episode, ...], spans: _Spans, training_s: float) -> Summary:
    by_kind: dict[str, int] = {}
    by_replica: dict[str, int] = {}
    for episode in episodes:
        for kind in [culprit.kind for culprit in episode.culprits] or ["connection"]:
            by_kind[kind] = by_kind.get(kind, 0) + 1
        for culprit in episode.culprits:
            by_replica[culprit.replica] = by_replica.get(culprit.replica, 0) + 1
    stalled = [episode for episode in episodes if episode.stall_s is not None]
    again = sum(episode.recomputed_lanes for episode in episodes)
    return Summary(
        failures=sum(by_kind.values()),
        by_kind=dict(sorted(by_kind.items(), key=lambda pair: (-pair[1], pair[0]))),
        by_replica=dict(sorted(by_replica.items())),
        lost={replica: fact.why for replica, (_, fact) in sorted(chronicle.lost.items())},
        stall_s=_union_s(spans.stalls),
        training_s=training_s,
        weakened_s=min(_union_s(spans.weakened), training_s),
        recomputed_lanes=again,
        recomputed_steps=again / chronicle.lanes if chronicle.lanes else 0.0,
        worst=max(stalled, key=lambda episode: episode.stall_s or 0.0).number if stalled else None,
    )


def _seconds(begin_ns: int, end_ns: int) -> float:
    return max(0.0, (end_ns - begin_ns) / _NS)


def _union_s(spans: list[tuple[int, int]]) -> float:
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total / _NS


def _before(times_ns: list[int], ns: int) -> int | None:
    """The last of these, which grow, that is not after ns."""
    place = bisect_right(times_ns, ns)
    return times_ns[place - 1] if place else None


def _member(culprit: Culprit) -> Member:
    replica, _, incarnation = culprit.member.rpartition(".")
    return Member(replica, int(incarnation))


def _by_time(culprit: Culprit) -> tuple[int, str]:
    """Of failures that belong together the first is the one to look at."""
    return culprit.ns, culprit.member
