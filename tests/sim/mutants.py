"""Rules broken on purpose. Each mutant forgets one rule of the protocol; the simulation must notice.

The first group breaks rules that were there from the start, the second undoes what the simulator made us mend.
"""

import msgspec

from regrow.core.ahead import Result
from regrow.core.attendance import Attendance, Task
from regrow.core.boundary import Pass
from regrow.core.comebacks import Comebacks
from regrow.core.effects import Adopt, Commit, Effect, Exchange, Hear, Hush, Log, Save, Snap
from regrow.core.events import Event, Formed, Reduced, SaveWished
from regrow.core.lanes import Node, lanes_in
from regrow.core.listener import Heard, Listener, Record
from regrow.core.listening import Listening
from regrow.core.log import Chain, follow
from regrow.core.membership import Membership, MembershipConfig
from regrow.core.membership_effects import Founded, MembershipEffect, Persist, Saved, Seek, Send
from regrow.core.membership_events import Died
from regrow.core.messages import FromMember, Join, Park, StatelessFound
from regrow.core.origin import Founding, Origin
from regrow.core.resolve import Divided, Resolution, Share, Stateless, Statement
from regrow.core.roster import NO_VERSION, Member, Roster, Version
from regrow.core.saves import Urgency
from regrow.sim.logs import Logs
from regrow.sim.process import Process
from regrow.sim.rules import Rules
from regrow.sim.vault import Gathering, Generation, Vault

# What a member forgets


class RedoesUnlessPassed(Attendance):
    """Commits in resolve only what some survivor passed: a passer that died is forgotten."""

    def _resolve(self, roster: Roster, table: tuple[Statement, ...]) -> Resolution | Stateless | Divided:
        top = max(s.step for s in table)
        if all(s.step == top for s in table if s.holds_state):
            table = tuple(msgspec.structs.replace(s, complete=False) for s in table)
        return super()._resolve(roster, table)


class ForgetsAttempts(Attendance):
    """States a result as complete though a resolution has voided it: any attempt's will do."""

    _stale: Result | None = None

    def _exchanged(self, version: Version, table: tuple[Statement, ...]) -> list[Effect]:
        self._stale = self.result or self._stale
        return super()._exchanged(version, table)

    def _statement(self) -> Statement:
        statement = super()._statement()
        if self._stale is None:
            return statement
        return msgspec.structs.replace(statement, complete=True, digest=self._stale.digest)

    def _commit(self, by: str, switch: Version | None = None, save: Urgency = Urgency.NONE) -> list[Effect]:
        self.result = self.result or self._stale
        self._stale = None
        return super()._commit(by, switch, save)


class KeepsItsSeat(Attendance):
    """Goes on under its old roster when a new one leaves it out."""

    def _pushed(self, roster: Roster) -> list[Effect]:
        return super()._pushed(roster) if roster.seat(self.me) is not None else []


class CountsTwice(Attendance):
    """Deals a roster's lanes to a step in doubt too, whoever holds them already."""

    def _resolve(self, roster: Roster, table: tuple[Statement, ...]) -> Resolution | Stateless | Divided:
        outcome = super()._resolve(roster, table)
        if not isinstance(outcome, Resolution):
            return outcome
        shares = tuple(
            Share(
                member=share.member,
                keep=share.keep,
                compute=tuple(sorted(set(roster.seats[roster.index(share.member)].lanes) - lanes_in(share.keep))),
            )
            for share in outcome.shares
        )
        return msgspec.structs.replace(outcome, shares=shares)


class SkipsTheBoundary(Attendance):
    """Commits as soon as the result is here, before everyone has said so."""

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        if isinstance(event, Reduced) and self.task is Task.BUSY:
            return self._commit("boundary")
        return effects


class ResultOutlivesRedo(Attendance):
    """Keeps its result when a resolution decides to redo the step."""

    def _exchanged(self, version: Version, table: tuple[Statement, ...]) -> list[Effect]:
        result = self.result
        effects = super()._exchanged(version, table)
        if self.result is None and self.task is Task.BUSY:
            self.result = result
        return effects


# What a coordinator forgets


class PushesBeforePersisting(Membership):
    def _make(self, members: set[Member], cause: str, why: str, base: Roster | None = None) -> list[MembershipEffect]:
        effects = super()._make(members, cause, why, base)
        return [e for e in effects if not isinstance(e, Persist)] + [e for e in effects if isinstance(e, Persist)]


class ReusesVersions(Membership):
    """Starts again in the term of the one before."""

    def __init__(self, config: MembershipConfig, saved: Saved | None = None) -> None:
        super().__init__(config, saved)
        if saved is not None:
            self._term = saved.term


class EveryoneFounds(Membership):
    """Takes the initial weights of a restarted replica for the job's state."""

    def _join(self, now: float, join: Join) -> list[MembershipEffect]:
        effects = super()._join(now, join)
        for presence in self._present.values():
            presence.founder = True
        return effects


class StartsOver(Membership):
    """When every member is lost, begins again from initial weights."""

    def _end(self, outcome: str, why: str) -> list[MembershipEffect]:
        if outcome != "state-lost" or not self._present or self._ending:
            return super()._end(outcome, why)
        for presence in self._present.values():
            presence.founder = True
        return self._make(set(self._present), "start-over", why)


# What the simulator made us mend


class NeverRepeats(Attendance):
    """Says everything once, whatever becomes of the connection."""

    def _repeat(self, version: Version) -> list[Effect]:
        return []


class NeverParks(Membership):
    """Lets whoever is not needed any more listen on: the members go on naming it."""

    def _change(self, roster: Roster, cause: str) -> list[MembershipEffect]:
        effects = super()._change(roster, cause)
        return [e for e in effects if not (isinstance(e, Send) and isinstance(e.message, Park))]


class SeatsTheLeftOut(Membership):
    """Takes a member that an earlier coordinator evicted for a new one."""

    def _join(self, now: float, join: Join) -> list[MembershipEffect]:
        return super()._join(now, msgspec.structs.replace(join, seen=NO_VERSION))


class AwaitsNobody(Membership):
    """Does nothing for those whose last boundary broke after others had left."""

    def _await_others(self, now: float) -> None:
        pass


class EvictsTheLast(Membership):
    """Evicts whoever is silent, even when nobody else holds the state."""

    def _can_go_on_without(self, member: Member, now: float) -> bool:
        return True


class MournsTooEarly(Membership):
    """Believes a late joiner that the state is lost, though others have left with it."""

    def _hear(self, now: float, message: FromMember) -> list[MembershipEffect]:
        if isinstance(message, StatelessFound) and message.version == self.version:
            return self._end("state-lost", message.why)
        return super()._hear(now, message)


class DistrustsCleanExits(Membership):
    """Needs to have heard of the end to believe an exit code, or a last stamp."""

    def _died(self, died: Died) -> list[MembershipEffect]:
        died = _unstamped(died)
        return super()._died(msgspec.structs.replace(died, clean=died.clean and self._ending))


class TrustsWordsAlone(Membership):
    """Needs to have heard that a member has left, to know that it died after its last step."""

    def _died(self, died: Died) -> list[MembershipEffect]:
        return super()._died(_unstamped(died))


def _unstamped(died: Died) -> Died:
    is_past = died.place is not None and died.place.is_past_the_end
    return msgspec.structs.replace(died, place=None) if is_past else died


class BlamesItsOwnKill(Membership):
    """Calls it a failure when a member that it ended itself turns out to have left before."""

    def _died(self, died: Died) -> list[MembershipEffect]:
        self._gone -= {died.member} - self._dead
        return super()._died(died)


class ForgetsTheBudget(Membership):
    """Counts restarts anew with every start of the coordinator."""

    def __init__(self, config: MembershipConfig, saved: Saved | None = None) -> None:
        super().__init__(config, msgspec.structs.replace(saved, spent={}) if saved else None)


class ForgetsItsComebacks(Membership):
    """Counts foundings in vain anew with every start of the coordinator."""

    def __init__(self, config: MembershipConfig, saved: Saved | None = None) -> None:
        super().__init__(config, msgspec.structs.replace(saved, comebacks=Comebacks()) if saved else None)


class ComesBackForEver(Membership):
    """Founds a job again that never gets any further."""

    def __init__(self, config: MembershipConfig, saved: Saved | None = None) -> None:
        super().__init__(msgspec.structs.replace(config, max_job_restarts=1 << 30), saved)


class TakesTheDoomedForDead(Membership):
    """Concludes the job while a member that it has only given up may still be at its last step."""

    def _finish(self) -> list[MembershipEffect]:
        dead, self._dead = self._dead, self._dead | self._gone
        try:
            return super()._finish()
        finally:
            self._dead = dead


class ForgetsTheStop(Membership):
    """A wish to stop dies with the coordinator that heard it."""

    def __init__(self, config: MembershipConfig, saved: Saved | None = None) -> None:
        super().__init__(config, saved)
        self._stopping = False


class ConcludesAtOnce(Membership):
    """Does not wait, after a restart, for the exits of those who left before it."""

    def _finish(self) -> list[MembershipEffect]:
        self._now_s = float("inf")
        return super()._finish()


class RisksTheLastCopy(Attendance):
    """Computes a lane that others died in, though nobody else holds the state."""

    def _pushed(self, roster: Roster) -> list[Effect]:
        return super()._pushed(msgspec.structs.replace(roster, suspects=()) if len(roster.seats) == 1 else roster)


class LeavesOutTooMuch(Attendance):
    """Takes a suspect for poison."""

    def _pushed(self, roster: Roster) -> list[Effect]:
        skips = (*roster.skips, *(suspect.cell for suspect in roster.suspects))
        return super()._pushed(msgspec.structs.replace(roster, skips=skips, suspects=()))


# What those who come and go forget


class TestifiesAlone(Attendance):
    """Goes on by itself, though those it handed over to may have gone on as well."""

    def _statement(self) -> Statement:
        return msgspec.structs.replace(super()._statement(), handed=())


class WaitsInVain(Membership):
    """Seats nobody in a job that waits."""

    def _change(self, roster: Roster, cause: str) -> list[MembershipEffect]:
        return [] if roster.waits else super()._change(roster, cause)


class ForgetsTheStaff(Membership):
    """Knows after a restart only whom the job began with."""

    def __init__(self, config: MembershipConfig, saved: Saved | None = None) -> None:
        super().__init__(config, None if saved is None else msgspec.structs.replace(saved, staff=None))


class ForgetsTheBase(Membership):
    """Concludes the job while one that a planned roster has no seat for may still be at its last step."""

    def _finish(self) -> list[MembershipEffect]:
        base, self._base = self._base, None
        try:
            return super()._finish()
        finally:
            self._base = base


class AwaitsTheRetired(Membership):
    """Keeps a place for one that has left for good, though its relief went elsewhere."""

    def _lose(self, replica: str, why: str) -> list[MembershipEffect]:
        retired = self.staff.retired
        gone = tuple(name for name in retired if name not in self.staff.places)
        self.staff = msgspec.structs.replace(self.staff, retired=gone)
        effects = super()._lose(replica, why)
        self.staff = msgspec.structs.replace(self.staff, retired=retired)
        return effects


class AwaitsAllToEnter(Membership):
    """Whoever comes to a roster that waits does so too, for one whose table was lost on the way."""

    def _reinforce(self, now: float) -> list[MembershipEffect]:
        return []


class TakesAFounderForLate(Membership):
    """Kills at the end whoever is not known to have entered, though it needed nobody to heal it."""

    def _founds(self, member: Member) -> bool:
        return False


# What is planned


class EntersByItsPush(Attendance):
    """Goes on under a planned roster as soon as its group stands, whatever the boundary says."""

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        if self.next is not None and self._next_formed and isinstance(event, Formed) and self.task is not Task.GONE:
            effects += self._switch(self.next.version)
        return effects


class EntersByItsSeat(Attendance):
    """A joiner that has a seat in a planned roster enters it by the next record, whether or not that says so."""

    def _replay(self, heard: Heard) -> list[Effect]:
        roster = self.roster
        if roster is not None and roster.base is not None and self.listening is not None and self.listening.is_audited:
            heard = msgspec.structs.replace(heard, record=msgspec.structs.replace(heard.record, switch=roster.version))
        return super()._replay(heard)


class KeepsTheSwitchToItself(Attendance):
    """The record does not say that the members went on under a planned roster."""

    def _commit(self, by: str, switch: Version | None = None, save: Urgency = Urgency.NONE) -> list[Effect]:
        return super()._commit(by, None, save)


class SeatsOnlyThePlanned(Membership):
    """Forgets, after a failure, those of the base that the planned roster has no seat for."""

    def _issue(self, cause: str, why: str) -> list[MembershipEffect]:
        self._base = None
        return super()._issue(cause, why)


class SeatsOnlyTheBase(Membership):
    """Forgets, after a failure, those whom the planned roster seats for the first time."""

    def _issue(self, cause: str, why: str) -> list[MembershipEffect]:
        if self._base is not None:
            self.roster, self._base = msgspec.structs.replace(self._base, version=self.version), None
        return super()._issue(cause, why)


class PlansOverPlans(Membership):
    """Plans the next roster before all have entered the last one."""

    def _admit(self, cause: str) -> list[MembershipEffect]:
        self._awaited = set()
        return super()._admit(cause)


class StatesWhatItHeard(Attendance):
    """Takes what it loaded and replayed for a member's state."""

    def _pushed(self, roster: Roster) -> list[Effect]:
        knows = self.listening is not None and self.listening.is_loaded and roster.version > self.seen
        effects = super()._pushed(roster)
        if knows and roster.base is None and self.task is not Task.GONE:
            self.holds_state = True
        return effects


class MournsListeners(Membership):
    """Answers the death of a listener by a roster."""

    def _died(self, died: Died) -> list[MembershipEffect]:
        is_listener = died.member in self._present and not self._sits(died.member) and died.member not in self._gone
        effects = super()._died(died)
        return effects + (self._issue(f"died-{died.member}", "it is gone") if is_listener and not self._over else [])


class ListensOnce(Attendance):
    """A joiner whose lines were lost does not begin again."""

    def _unheard(self, listener: Listener, why: str, named: bool) -> list[Effect]:
        effects = super()._unheard(listener, why, named)
        return [] if any(isinstance(effect, Hear) for effect in effects) else effects


class ListensAgain(Attendance):
    """Begins to listen anew, though the members may have gone on counting on it."""

    def _unheard(self, listener: Listener, why: str, named: bool) -> list[Effect]:
        if self.listening is not None and listener == self.listening.listener and self.listening.is_audited:
            return self._hear(self.listening.roster)
        return super()._unheard(listener, why, named)


class DropsWhatOverran(Attendance):
    """A joiner that cannot keep up tells nobody."""

    def _overran(self, listener: Listener, why: str) -> list[Effect]:
        self.listening = None
        return [Hush()]


class SkipsItsAudit(Attendance):
    """Forms a planned roster without having been audited."""

    def _listen(self, listening: Listening) -> list[Effect]:
        if not listening.is_audited and listening.is_loaded:
            listening.is_audited = True
            return self._form_planned() + super()._listen(listening)
        return super()._listen(listening)

    def _form_planned(self) -> list[Effect]:
        if self.listening is not None and self.listening.is_loaded:
            self.listening.is_audited = True
        return super()._form_planned()


class AcceptsAnotherDigest(Attendance):
    """Calls its audit passed, whatever it came to."""

    def _audited(self, listening: Listening, heard: Heard, digest: int | None) -> list[Effect]:
        assert heard.record.lane is not None
        return super()._audited(listening, heard, heard.record.lane.digest)


class SkipsARecord(Attendance):
    """Counts a record as committed that it has not replayed, to catch up sooner."""

    def _listen(self, listening: Listening) -> list[Effect]:
        if listening.is_loaded and len(listening.records) > 1:
            listening.records.popleft()
            self.step += 1
        return super()._listen(listening)


class FeedsWhatIsOver(Attendance):
    """Says that a snapshot is of the step that is to come, not of the one whose record follows."""

    def _feed(self, roster: Roster, listener: Listener) -> list[Effect]:
        effects = super()._feed(roster, listener)
        return [msgspec.structs.replace(e, step=e.step + 1) if isinstance(e, Snap) else e for e in effects]


class StopsFeeding(Attendance):
    """Sends one record after the snapshot, and nothing more."""

    def _commit(self, by: str, switch: Version | None = None, save: Urgency = Urgency.NONE) -> list[Effect]:
        effects = super()._commit(by, switch, save)
        self._fed.clear()
        return effects


# What is saved, and what is begun from


class CopiesBeforeTheStep(Attendance):
    """S1: Copies its portion with the commit, before the optimizer has stepped."""

    def _commit(self, by: str, switch: Version | None = None, save: Urgency = Urgency.NONE) -> list[Effect]:
        commit = super()._commit(by, switch, save)
        return [*self._saving.enter(self.step, self._last), *commit]


class LabelsTooEarly(Vault):
    """S2: Calls a save whole with the first portion."""

    def _has_all(self, gathering: Gathering) -> bool:
        return bool(gathering.came)


class BeginsWithoutALabel(Vault):
    """S2: Takes what never became whole for a saved state."""

    _torn: Generation | None = None

    def _void(self, gathering: Gathering, why: str) -> None:
        if gathering.came:
            self._torn = Generation(gathering.save.step, next(iter(gathering.came.values())), gathering.line, {})
        super()._void(gathering, why)

    def _found(self, step: int | None) -> Generation | None:
        return self._torn or super()._found(step)


class ForgetsVoidSaves(Attendance):
    """S3: Does not wish another save when the last one is void."""

    def handle(self, event: Event) -> list[Effect]:
        return [] if isinstance(event, SaveWished) else super().handle(event)


class DropsItsWishWhereMembersPart(Attendance):
    """S3: A verdict that saves nothing, because members part by it, counts as one that saves."""

    def _switch(self, version: Version) -> list[Effect]:
        self._saving._wish = Urgency.NONE
        return super()._switch(version)


class LeavesWithoutSaving(Attendance):
    """S3: The last state is nobody's affair."""

    def _save_last(self, roster: Roster, verdict: Pass) -> list[Effect]:
        return []


class LeavesItsCopyUnsaved(Attendance):
    """S8: Alone with the state, waits for the interval like anybody else."""

    def _adopt(self, roster: Roster, resolution: Resolution, drop: tuple[Node, ...] = ()) -> Adopt:
        return Adopt(resolution=resolution, drop=drop)


class LendsTheNewest(Vault):
    """S4: A new save begins in the memory of the last one that is whole."""

    def save(self, process: "Process", effect: Save) -> None:
        self.newest = None
        super().save(process, effect)


class ForgetsWhoHandedOver(Membership):
    """S5: One that has no seat any more, and has not said that it left, is a joiner like any other."""

    def _refound(self, why: str) -> list[MembershipEffect]:
        for presence in self._present.values():
            presence.entered, presence.founder, presence.is_released = NO_VERSION, False, False
        return super()._refound(why)

    def _has_buried(self) -> bool:
        return True


class FoundsInItsOldTerm(Membership):
    """S5: Counts rosters anew, and stays in its term."""

    def _refound(self, why: str) -> list[MembershipEffect]:
        effects = super()._refound(why)
        self._term -= 1
        return [effect for effect in effects if not isinstance(effect, Seek)] + self._seek()


class GoesBackSilently(Membership):
    """S5: Nobody is told what the job goes back to."""

    def _found(self, cause: str) -> list[MembershipEffect]:
        return [effect for effect in super()._found(cause) if not isinstance(effect, Founded)]


class SaysItTooLate(Membership):
    """S5: Says what the job goes back to once all else is done, which a crash may prevent."""

    def _found(self, cause: str) -> list[MembershipEffect]:
        return sorted(super()._found(cause), key=lambda effect: isinstance(effect, Founded))


class GivesUpAtTheEnd(Membership):
    """S5: Everybody lost between the last step and the end is not everybody lost."""

    def _refound_all(self, why: str) -> list[MembershipEffect]:
        return self._end("state-lost", why)


class EndsWithItsReplicas(Membership):
    """S5: Has a vault, and does not think of it."""

    @property
    def _refounds(self) -> bool:
        return False


class BeginsWithItsOwnWeights(Attendance):
    """S6: A founder that did not wait for what it was to load."""

    def _pushed(self, roster: Roster) -> list[Effect]:
        return super()._pushed(msgspec.structs.replace(roster, origin=None))


class ForgetsTheOrigin(Membership):
    """S6: Only the first roster names the origin."""

    def _make(self, members: set[Member], cause: str, why: str, base: Roster | None = None) -> list[MembershipEffect]:
        if self.roster is not None:
            self._founding = Founding()
        return super()._make(members, cause, why, base)


class TrustsTheNewestRoster(Attendance):
    """The same, by a founder that does not remember what it was told to load."""

    def _pushed(self, roster: Roster) -> list[Effect]:
        self._origin = None
        return super()._pushed(roster)


class TakesAnyMathematics(Membership):
    """S7: Resumes with other mathematics than the state was saved with, and asks nobody."""

    def __init__(self, config: MembershipConfig, saved: Saved | None = None) -> None:
        super().__init__(msgspec.structs.replace(config, new_mathematics=True), saved)


# What is written ahead, and what is replayed


class LogsAfterItsRow(Attendance):
    """L1: Writes its part once it has seen the verdict, with the commit."""

    _late: tuple[Effect, ...] = ()

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        if any(isinstance(effect, Commit) for effect in effects):
            late, self._late = self._late, ()
            return [*late, *effects]
        self._late += tuple(effect for effect in effects if isinstance(effect, Log))
        return [effect for effect in effects if not isinstance(effect, Log)]


class LogsAtBoundariesAlone(Attendance):
    """L1: Says in a resolve that it holds a result that is not in its log."""

    def _settle(self) -> list[Effect]:
        ahead, effects = self._ahead._written, super()._settle()
        if any(isinstance(effect, Exchange) for effect in effects):
            self._ahead._written = ahead
            return [effect for effect in effects if not isinstance(effect, Log)]
        return effects


class LeavesOutTheAbsent(Attendance):
    """L2: Commits by a resolve what only those in the table have logged."""

    def _go_on(self, roster: Roster, resolution: Resolution) -> list[Effect]:
        effects = super()._go_on(roster, resolution)
        is_resolved = any(isinstance(effect, Commit) for effect in effects)
        return [effect for effect in effects if not (is_resolved and isinstance(effect, Log))]


class PutsAttemptsTogether(Logs):
    """L4: Takes whatever parts there are of a step, from whichever attempts."""

    def chain(self, step: int, since: Version) -> Chain:
        parts = [w.part for w in self._written]
        newest = {part.record.step: part.record for part in sorted(parts, key=lambda part: part.record.attempt)}
        mixed = [msgspec.structs.replace(p, record=newest[p.record.step], count=max(q.count for q in parts)) for p in parts]
        return follow(step, since, mixed)


class ReplaysAnotherLineage(Logs):
    """L5: Replays whatever follows in number, whatever it was committed after."""

    def chain(self, step: int, since: Version) -> Chain:
        records: list[Record] = []
        while found := super().chain(step + len(records), NO_VERSION).records:
            records.append(found[0])
        return Chain(records=tuple(records), beyond=None)


class TakesTheSameForAnother(Vault):
    """L5: Replays nothing onto a state from a place, though it is the one that was harmed in memory."""

    def _since(self, found: Generation, seek: Seek) -> Version:
        return Version(seek.number, 0)


class TakesAnotherForTheSame(Vault):
    """L5: Replays onto a state from a place what followed another one, which was harmed in memory."""

    def _since(self, found: Generation, seek: Seek) -> Version:
        return found.since if self._harmed is None else self._harmed.since


class StatesBeforeItReplays(Attendance):
    """L5: Holds the state once it has loaded it."""

    def _recalled(self) -> list[Effect]:
        self.holds_state = True
        return super()._settle()


class FreesTooEarly(Vault):
    """L6: Gives records up when a newer state begins to come, before it is whole."""

    def save(self, process: "Process", effect: Save) -> None:
        self._world.logs.free(effect.step)
        super().save(process, effect)


class BeginsAgainUnproven(Vault):
    """L7: With nothing whole in memory the job begins again, whatever it had committed."""

    def _is_provable(self, beginning: Generation) -> bool:
        return True


class ForgetsWhatItReached(Membership):
    """L7: Believes whoever tells it that the job had not begun."""

    def _forgets(self, origin: Origin) -> bool:
        return False


class BeginsWithWhatItLoaded(Attendance):
    """L7: Takes what it holds for what its script built."""

    def _recall(self, roster: Roster, origin: Origin) -> list[Effect]:
        self._is_built = True
        return super()._recall(roster, origin)


class LogsNoStop(Logs):
    """Writes what was committed, and not that the job was to end with it."""

    def write(self, process: "Process", effect: Log) -> None:
        super().write(process, msgspec.structs.replace(effect, stop=False))


class StopsForAnOldWish(Logs):
    """Ends where somebody once wished to, who died before the others saw it."""

    def chain(self, step: int, since: Version) -> Chain:
        chain = super().chain(step, since)
        last = min([w.part.record.step + 1 for w in self._written if w.part.stop], default=self._world.plan.steps)
        return msgspec.structs.replace(chain, records=tuple(_ending(record, last) for record in chain.records))


def _ending(record: Record, last: int) -> Record:
    return msgspec.structs.replace(record, last=min(record.last, last))


class SeeksBeforeTheProof(Membership):
    """Has the logs read while one that was given up may still write there, and commit."""

    @property
    def _may_seek(self) -> bool:
        return True


class AsksOnce(Membership):
    """A coordinator that comes back waits for the answer to its predecessor."""

    def _open(self, now: float) -> list[MembershipEffect]:
        effects = super()._open(now)
        return [effect for effect in effects if not (self._resumed and isinstance(effect, Seek))]


MUTANTS: dict[str, Rules] = {
    **{
        mutant.__name__: Rules(attendance=mutant)
        for mutant in (
            RedoesUnlessPassed,
            ForgetsAttempts,
            KeepsItsSeat,
            CountsTwice,
            SkipsTheBoundary,
            ResultOutlivesRedo,
            NeverRepeats,
            RisksTheLastCopy,
            LeavesOutTooMuch,
            TestifiesAlone,
            EntersByItsPush,
            EntersByItsSeat,
            KeepsTheSwitchToItself,
            StatesWhatItHeard,
            ListensOnce,
            ListensAgain,
            DropsWhatOverran,
            SkipsItsAudit,
            AcceptsAnotherDigest,
            SkipsARecord,
            FeedsWhatIsOver,
            StopsFeeding,
            CopiesBeforeTheStep,
            ForgetsVoidSaves,
            DropsItsWishWhereMembersPart,
            LeavesWithoutSaving,
            LeavesItsCopyUnsaved,
            BeginsWithItsOwnWeights,
            LogsAfterItsRow,
            LogsAtBoundariesAlone,
            LeavesOutTheAbsent,
            StatesBeforeItReplays,
            BeginsWithWhatItLoaded,
        )
    },
    **{
        mutant.__name__: Rules(membership=mutant)
        for mutant in (
            PushesBeforePersisting,
            ReusesVersions,
            EveryoneFounds,
            StartsOver,
            NeverParks,
            SeatsTheLeftOut,
            AwaitsNobody,
            EvictsTheLast,
            MournsTooEarly,
            DistrustsCleanExits,
            TrustsWordsAlone,
            BlamesItsOwnKill,
            TakesTheDoomedForDead,
            ForgetsTheStop,
            ConcludesAtOnce,
            ForgetsTheBudget,
            ForgetsItsComebacks,
            ComesBackForEver,
            WaitsInVain,
            ForgetsTheStaff,
            ForgetsTheBase,
            AwaitsTheRetired,
            AwaitsAllToEnter,
            TakesAFounderForLate,
            SeatsOnlyThePlanned,
            SeatsOnlyTheBase,
            PlansOverPlans,
            MournsListeners,
            ForgetsWhoHandedOver,
            FoundsInItsOldTerm,
            GoesBackSilently,
            SaysItTooLate,
            GivesUpAtTheEnd,
            EndsWithItsReplicas,
            TakesAnyMathematics,
            AsksOnce,
            SeeksBeforeTheProof,
        )
    },
    "ForgetsTheOrigin": Rules(attendance=TrustsTheNewestRoster, membership=ForgetsTheOrigin),
    **{
        mutant.__name__: Rules(vault=mutant)
        for mutant in (
            LabelsTooEarly,
            BeginsWithoutALabel,
            LendsTheNewest,
            FreesTooEarly,
            TakesTheSameForAnother,
            TakesAnotherForTheSame,
        )
    },
    "BeginsAgainUnproven": Rules(vault=BeginsAgainUnproven, membership=ForgetsWhatItReached),
    **{
        mutant.__name__: Rules(logs=mutant)
        for mutant in (PutsAttemptsTogether, ReplaysAnotherLineage, LogsNoStop, StopsForAnOldWish)
    },
}
