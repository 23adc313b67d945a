"""The vault: a process without torch that holds a job's saves in the host's memory, and makes them durable.

    python -m regrow.agent.vault LINE PARENT ARENA:LABEL,... MEMBER:LOG,... SETTING

It hears workers on a socket of its own and the agent on the line that it was started with (shell.vaulting). One loop, in
which nothing blocks: what does is done by threads (opening and reading places, digests, making pages) or processes (one
writer for each place). It can be killed at any moment: what is whole lies in memory that the agent holds open, under a label
(`generation`), and the next vault goes on from there. It ends with the agent.
"""

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import msgspec

from regrow.agent.assembling import Hands
from regrow.agent.generation import PLACES, Generation
from regrow.agent.keeping import Keeping, Voices
from regrow.agent.logs import Logs, close
from regrow.agent.opening import opened
from regrow.agent.pacing import Pacing
from regrow.agent.patience import begun, within
from regrow.agent.recalling import Recalling
from regrow.agent.reception import Reception
from regrow.agent.seeking import Begun, Report, Seeking
from regrow.agent.tier import Tier
from regrow.agent.vault_line import VaultLine
from regrow.agent.writer import NICENESS
from regrow.core.completion import Completion
from regrow.core.draft import Draft
from regrow.core.errors import PeerError
from regrow.core.origin import BEGINNING, LOGS, MEMORY, Origin
from regrow.core.records import OriginFound, OriginMended, OriginPassedOver
from regrow.core.roster import Member
from regrow.shell import faultpoint
from regrow.shell.deafness import turn_deaf
from regrow.shell.journal import Journal
from regrow.shell.parentage import die_with_parent
from regrow.shell.vaulting import (
    Alive,
    Came,
    Deposit,
    Deposited,
    Due,
    Finish,
    Finished,
    Foreseen,
    FromAgent,
    FromWorker,
    Holds,
    Hurry,
    Kept,
    LogHeld,
    LogOpens,
    Opened,
    Paid,
    Recall,
    Said,
    Seek,
    Setting,
    Sought,
    ToAgent,
    Unusable,
)
from regrow.state.completions import mark
from regrow.state.stores import open_store

_PROGRESS_S = 2.0
_SIGNS = 10
"""Of life, in the time after which a silent vault is replaced."""
_SOOTHED_S = 0.5
_LOOK_S = 0.5
"""So often it looks whether its writers have ended."""
_MARK_S = 10.0
"""A store that does not take a marker in this time is given up: silence for longer would look like a dead vault."""

T = TypeVar("T")


def main(arguments: list[str]) -> None:
    number, parent, memory, logged, words = arguments
    die_with_parent(signal.SIGKILL)
    if os.getppid() != int(parent):
        return
    turn_deaf()  # a job that is told to end still wants its last save
    os.nice(NICENESS)
    setting = msgspec.json.decode(words, type=Setting)
    if setting.faults:
        faultpoint.arm(setting.faults, Member("vault", setting.incarnation), Path(setting.run_dir))
    line = VaultLine(socket.socket(fileno=int(number)))
    generations = []
    for place, pair in enumerate(memory.split(",")):
        arena, label = map(int, pair.split(":"))
        for fd in (arena, label):
            os.set_inheritable(fd, False)  # writers get what they are to see, and no more
        generations.append(Generation(place, arena, label))
    logs = {member: int(fd) for member, _, fd in (pair.partition(":") for pair in filter(None, logged.split(",")))}
    for fd in logs.values():
        os.set_inheritable(fd, False)
    faultpoint.faultpoint("vault-open")
    try:
        Vault(setting, line, generations, logs).run()
    except PeerError:
        pass  # the agent is gone, or wants nothing more
    os._exit(0)  # threads that are stuck in a store must not keep it


class Vault:
    """Its loop, and what the agent asks of it."""

    def __init__(self, setting: Setting, agent: VaultLine, generations: list[Generation], logs: dict[str, int]) -> None:
        self._setting = setting
        self._agent = agent
        self._journal = Journal(Path(setting.run_dir) / "journal", "vault")
        self._selector = selectors.DefaultSelector()
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waker, self._woken = socket.socketpair()
        self._seek: Seek | None = None
        """Asked, and not begun: a save is on its way to be whole."""
        self._completion: Completion | None = None
        self._finish_s: float | None = None
        """When it was asked to."""
        self._told_s = 0.0
        self._shown_s = time.monotonic()
        self._is_over = False
        self._reception = Reception(self._selector, self._post, self._heard, lambda member: self._keeping.gone(member))
        faults = "" if setting.incarnation else setting.faults  # writers count anew with each vault
        self._pacing = Pacing(setting, self._journal, self._reception.tell_all, lambda: self._is_free)
        tiers = [
            Tier(
                n,
                place,
                setting.patience_s,
                faults,
                self._journal,
                self._pacing,
                self._post,
                self._tell,
                self._freed,
                self._harmed,
            )
            for n, place in enumerate(setting.places)
        ]
        voices = Voices(
            worker=self._reception.tell,
            workers=self._reception.tell_all,
            agent=self._tell,
            has_line=self._reception.has_line,
            kept=self._kept,
        )
        self._keeping = Keeping(
            generations, tiers, setting.term, setting.begins, self._journal, self._pacing, self._post, voices
        )
        self._logs = Logs(logs, self._tell)
        self._recalling = Recalling(generations, self._logs, self._post, self._reception.tell)

    # The loop

    def run(self) -> None:
        """Until all that the agent wanted is done. PeerError when the agent is gone before."""
        for sock in (self._waker, self._woken):
            sock.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake)
        self._selector.register(self._agent, selectors.EVENT_READ, self._serve_agent)
        self._open()
        while not self._is_over or self._agent.is_behind:
            for key, ready in self._selector.select(self._pause_s()):
                key.data(ready)
            self._run_posted()
            self._keeping.soothe()
            self._keeping.look()
            self._pacing.look()
            self._show_life()
            self._see_to_the_end()

    def _pause_s(self) -> float:
        """Until there is something to say: to whoever waits, of the end, or that this loop runs."""
        now_s = time.monotonic()
        pauses_s = [self._shown_s + self._setting.silence_s / _SIGNS - now_s]
        if self._finish_s is not None:
            pauses_s.append(self._told_s + _PROGRESS_S - now_s)
            if self._keeping.haste.by_s is not None:
                pauses_s.append(self._keeping.haste.by_s - now_s)
        pauses_s += [at_s - now_s for at_s in self._keeping.haste.looks_s]
        if self._keeping.is_crowded:
            pauses_s.append(_SOOTHED_S)
        if (pause_s := self._pacing.pause_s()) is not None:
            pauses_s.append(pause_s)
        return max(0.0, min(pauses_s))

    @property
    def _is_free(self) -> bool:
        """For another save: nobody wants anything else."""
        return self._seek is None and self._finish_s is None and self._keeping.is_ready

    def _show_life(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._shown_s + self._setting.silence_s / _SIGNS:
            self._shown_s = now_s
            if not self._agent.is_behind:  # else it has something to read already
                self._tell(Alive())

    def _post(self, call: Callable[[], None]) -> None:
        """From any thread."""
        self._posted.put(call)
        try:
            self._waker.send(b"\0")
        except BlockingIOError:
            pass  # it has been woken often enough

    def _wake(self, ready: int) -> None:
        self._woken.recv(1 << 16)

    def _run_posted(self) -> None:
        while True:
            try:
                call = self._posted.get_nowait()
            except Empty:
                return
            call()

    def _ask(self, call: Callable[[], T]) -> T:
        """What the loop answers, from another thread."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)

        self._post(run)
        return future.result()

    def _tell(self, message: ToAgent, fd: int | None = None) -> None:
        self._agent.send(message, fd)
        self._watch_agent()

    def _watch_agent(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._agent.is_behind else 0)
        if self._selector.get_key(self._agent).events != events:
            self._selector.modify(self._agent, events, self._serve_agent)

    def _serve_agent(self, ready: int) -> None:
        if ready & selectors.EVENT_WRITE:
            self._agent.flush()
            self._watch_agent()
        if ready & selectors.EVENT_READ:
            for payload in self._agent.received():
                message = msgspec.json.decode(payload, type=FromAgent)
                match message:
                    case Finish(completion=completion):
                        self._finish(completion)
                    case Hurry(by_s=by_s):
                        self._keeping.hurry(by_s)
                    case Holds(member=member):
                        self._reception.tell(member, LogHeld())
                    case Seek():
                        self._keeping.void("an origin is sought, since nobody is left who holds the state")
                        self._seek = message
                        self._freed()

    def _heard(self, member: str, message: FromWorker, fd: int | None) -> None:
        match message:
            case Came(unsettled=step):
                fate = self._keeping.fate(step) if step >= 0 else None
                self._reception.tell(member, fate or Kept(step=-1))
            case Foreseen(arena_bytes=size_bytes):
                self._keeping.foresee(size_bytes)
            case Deposit():
                self._keeping.deposit(member, message)
            case Deposited(step=step, version=version, index=index, why=why):
                self._keeping.deposited(member, (step, version), index, why)
            case Paid(step=step, seconds=seconds):
                self._pacing.paid(member, step, seconds)
            case Recall():
                self._recalling.recall(member, message)
            case LogOpens():
                assert fd is not None, "a log comes with its descriptor"
                self._logs.open(member, fd)

    # Opening

    def _open(self) -> None:
        if self._setting.term:  # others have opened these places before: workers wait for this one
            self._keeping.adopt()
            self._opened(Opened(newest=(), term=self._keeping.term))
            return
        future = begun(lambda: opened(self._setting.places, self._setting.patience_s), "regrow-open")
        future.add_done_callback(lambda done: self._post(lambda: self._opened(done.result())))

    def _opened(self, answer: Opened | Unusable) -> None:
        if len(self._setting.places) > PLACES:
            answer = Unusable(why=f"{len(self._setting.places)} places are named, and at most {PLACES} can be saved to")
        if isinstance(answer, Opened):
            self._keeping.term = answer.term
            for tier, newest in zip(
                self._keeping.tiers, answer.newest, strict=False
            ):  # of none, from a vault that came later
                tier.durable = newest
            self._reception.open(self._setting.address)
        self._tell(answer)

    # Seeking

    def _kept(self, step: int) -> None:
        self._logs.outgrow(step)
        self._freed()

    def _freed(self) -> None:
        """A save is whole, or a generation is wanted no longer, or a place refuses one."""
        self._keeping.haste.go_on()
        self._keeping.provide()
        if self._seek is not None and not self._keeping.is_digesting:
            seek, self._seek = self._seek, None
            faultpoint.faultpoint("vault-seek", **({} if seek.step is None else {"step": seek.step}))
            hands = Hands(
                take=lambda size_bytes: self._ask(lambda: self._keeping.take(size_bytes)).result(),
                drop=lambda generation, is_tainted: self._ask(lambda: self._keeping.drop(generation, is_tainted)),
                harmed=lambda generation: self._ask(lambda: self._keeping.outdo(generation)),
                noted=lambda fact: self._ask(lambda: self._noted(fact)),
                refused=lambda url, why: self._post(lambda: self._refused(url, why)),
                said=lambda text: self._post(lambda: self._tell(Said(text=text))),
                logged=lambda name, fd: self._ask(lambda: self._logs.open(name, fd)),
            )
            whole = self._keeping.hold()
            setting = self._setting
            logs = self._logs.copies()
            seeking = Seeking(
                seek, self._keeping.term, whole, logs, self._keeping.begins, setting.places, setting.patience_s, hands
            )
            begun(seeking.run, "regrow-seek").add_done_callback(
                lambda done: self._post(lambda: self._sought(seek.number, whole, logs, done.result()))
            )

    def _harmed(self, generation: Generation, draft: Draft, why: str) -> None:
        """What was whole there is not what was put there: found while it was saved to a place."""
        label = generation.label
        if label is not None and label.draft == draft and not generation.is_busy:  # else whoever has it now finds that too
            self._keeping.spoil(generation)
            self._noted(OriginPassedOver(step=draft.step, where=MEMORY, why=why))
            self._reception.tell_all(Due())  # what is logged may follow no other state that is left

    def _refused(self, url: str, why: str) -> None:
        self._tell(Said(text=f"{url} cannot be searched yet, and is tried again: {why}"))

    def _noted(self, fact: OriginPassedOver | OriginMended) -> None:
        self._journal.write(fact)
        which = f"the state of step {fact.step}" if fact.step >= 0 else "something"
        then = (
            "passed over" if isinstance(fact, OriginPassedOver) else f"{fact.lacking_bytes} bytes of it come from elsewhere"
        )
        self._tell(Said(text=f"{which} in {fact.where} is harmed and {then}: {fact.why}"))

    def _sought(self, number: int, held: list[Generation], logs: dict[str, int], report: Report) -> None:
        close(logs)
        self._keeping.release(held)
        found = report.found
        records = 0 if report.chained is None else len(report.chained.records)
        self._tell_damages(report)
        if report.begun is not None:
            self._begun(number, report, report.begun, records)
            return
        if found is None:
            self._tell(Sought(number=number, origin=None, mathematics={}, why=report.why))
            return
        draft = self._keeping.begin_from(found, report.newest_term)
        if found.where != MEMORY:
            served = [f"{one.size_bytes} bytes of {one.where} in {one.seconds:.2g} s" for one in found.served]
            parts = f" ({'; '.join(served)})" if len(served) > 1 else ""
            told = f"{draft.size_bytes} bytes in {found.seconds:.2g} s"
            self._tell(Said(text=f"the state of step {draft.step} comes from {found.where}: {told}{parts}"))
        self._pacing.note(
            OriginFound(
                step=draft.step,
                root=found.root,
                where=found.where,
                size_bytes=draft.size_bytes,
                seconds=found.seconds,
                served=found.served,
            )
        )
        origin = Origin(step=draft.step, root=found.root, where=found.where, records=records)
        self._recalling.note(origin, report.chained)
        self._tell(Sought(number=number, origin=origin, mathematics=draft.mathematics, since=report.since, why=report.why))

    def _begun(self, number: int, report: Report, begun: Begun, records: int) -> None:
        self._journal.write(OriginFound(step=0, root=begun.root, where=BEGINNING, size_bytes=0, seconds=report.seconds))
        origin = Origin(step=0, root=begun.root, where=BEGINNING, records=records)
        self._recalling.note(origin, report.chained)
        self._tell(Sought(number=number, origin=origin, mathematics={}, since=report.since, why=report.why))

    def _tell_damages(self, report: Report) -> None:
        if report.chained is None:
            return
        for one in report.chained.damages:
            self._noted(OriginPassedOver(step=one.step, where=LOGS, why=f"in the log of {one.member} {one.why}"))
        if (beyond := report.chained.chain.beyond) is not None and report.found is not None:
            through = report.found.draft.step + len(report.chained.records)
            why = f"it is whole in none of them, though step {beyond} was begun: what came after it is computed again"
            self._noted(OriginPassedOver(step=through, where=LOGS, why=why))

    # The end

    def _finish(self, completion: Completion | None) -> None:
        self._completion = completion
        self._finish_s = self._told_s = time.monotonic()
        self._keeping.void("the job has ended, and portions of this save have not come")

    def _see_to_the_end(self) -> None:
        if self._finish_s is None or self._is_over:
            return
        tiers, haste = self._keeping.tiers, self._keeping.haste
        if not self._keeping.is_digesting and not haste.is_up:
            self._keeping.secure(self._completion is not None)
        busy = [tier for tier in tiers if not tier.is_idle]
        if haste.is_up:
            self._is_over = True
            self._tell(Finished(failures=(*self._failures(), *map(_unfinished, busy))))
        elif not busy and haste.is_idle and not self._keeping.is_digesting:
            self._is_over = True
            failures = (*self._failures(), *self._mark())
            self._close()
            self._tell(Finished(failures=failures))
        else:
            self._show_progress(busy)

    def _close(self) -> None:
        """Nobody else is served any more: what retention removes goes before the end is told, unless the time is up."""
        closings = {begun(tier.close, "regrow-close"): tier for tier in self._keeping.tiers}
        while not self._keeping.haste.is_up and (left := wait(closings, _LOOK_S).not_done):
            self._show_life()
            self._show_progress([tier for closing, tier in closings.items() if closing in left])
        self._run_posted()  # what the writers said last

    def _show_progress(self, busy: Sequence[Tier]) -> None:
        now_s = time.monotonic()
        if self._finish_s is not None and now_s >= self._told_s + _PROGRESS_S:
            self._told_s = now_s
            words = "; ".join(f"{tier.place.url}: {tier.under_way or 'not begun yet'}" for tier in busy) or "a digest"
            self._tell(Said(text=f"saving for {now_s - self._finish_s:.0f} s: {words}", is_routine=True))

    def _mark(self) -> list[str]:
        """That the job is finished, wherever its last state is durable. Why that could not be done."""
        label, completion = self._keeping.newest_label, self._completion
        if label is None or completion is None:
            return []
        completion = msgspec.structs.replace(completion, step=label.draft.step, root=label.root)
        marks = [
            begun(partial(_marked, tier.place.url, completion), "regrow-mark")
            for tier in self._keeping.tiers
            if not tier.failures
        ]
        return [why for mark in marks if (why := mark.result())]

    def _failures(self) -> tuple[str, ...]:
        keeping = self._keeping
        gave_up = [why for tier in keeping.tiers for why in tier.failures]
        late = ["the newest state was not whole in memory when the time was up"] if keeping.is_digesting else []
        return (*keeping.failures, *late, *gave_up, *keeping.haste.conclude())


def _marked(url: str, completion: Completion) -> str:
    try:
        within(_MARK_S, url, lambda _: mark(open_store(url), completion))
    except Exception as error:  # the edge of a store: its library raises what it likes
        return f"{url}: it is not marked there that the job is finished: {error}"
    return ""


def _unfinished(tier: Tier) -> str:
    return f"{tier.place.url}: the time was up: {tier.under_way or 'not begun'}"


if __name__ == "__main__":
    main(sys.argv[1:])
