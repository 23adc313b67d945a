"""Checkpoints in any training loop: one object, without `regrow run`.

    checkpointer = Checkpointer("s3://bucket/run1", every=100)
    start = checkpointer.restore(model=model, optimizer=optimizer) or 0
    for step in range(start + 1, 10_001):
        ...
        optimizer.step()
        checkpointer.save(step, model=model, optimizer=optimizer)
    checkpointer.close()

`save` returns in milliseconds; the copy is made while training goes on (`hold`), and a process without torch makes it
durable (`keeper`). What goes wrong is a warning in the next call or optimizer step, and in `report()`; training goes on.
"""

import atexit
import os
import sys
import time
import weakref
from pathlib import Path
from tempfile import gettempdir
from types import TracebackType

from regrow.core.errors import ConfigError
from regrow.core.inexact import MODES
from regrow.core.pace import refusal
from regrow.core.retention import Retention
from regrow.core.roster import Member
from regrow.shell import faultpoint
from regrow.shell.door import WorkerDoor
from regrow.shell.writing import Setting
from regrow.state.archive import Archive
from regrow.state.chain import need_packages
from regrow.state.stores import open_store
from regrow.state.tracked import Tracked
from regrow.worker.account import Account, Report
from regrow.worker.forecast import Forecast
from regrow.worker.ranks import Ranks
from regrow.worker.restoring import restore
from regrow.worker.saving import Saving


class Checkpointer:
    """Saves and restores objects that have state_dict() and load_state_dict(). One thread uses it."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        every: int = 1,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_gb: float | None = None,
        delta: int = 0,
        moments: str | None = None,
        shard_mb: int = 256,
        patience_s: float = 120.0,
        mb_per_s: int | None = None,
        writes: bool | None = None,
        _faults: str = "",
    ) -> None:
        """url: a folder, or an address that fsspec reaches; one training job has it to itself.
        every: `save` saves at steps that are multiples of this.
        keep_last, keep_every, keep_gb: which checkpoints stay: the newest so many, those of steps that are multiples of
            this, and of these the newest that fit in so many GB. The newest always stays; by default all do.
        delta: at most so many checkpoints in a row hold only what has changed since the one before, where that is measured
            to be a gain; 0: all are whole. Takes memory for one more copy of the state, and the packages of regrow[delta].
        moments: "int8" or "pruned" stores the moments of Adam and its kin in fewer bits. What is restored is then not what
            was saved, and says so; the packages of regrow[delta] are needed. None: everything is exact.
        shard_mb: the largest file, unless one tensor is larger.
        patience_s: a save is given up when nothing of it was written for so long.
        mb_per_s: the store is written to no faster than so many MB a second; by default as fast as it goes.
        writes: whether this process saves. By default, rank 0 does where torch.distributed has several ranks; all restore.
        """
        for name, value in (
            ("every", every),
            ("keep_last", keep_last),
            ("keep_every", keep_every),
            ("shard_mb", shard_mb),
            ("mb_per_s", mb_per_s),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1")
        if delta < 0:
            raise ConfigError(f"delta={delta} must be at least 0")
        if delta:
            need_packages(f"delta={delta}")
        if moments is not None:
            _check_moments(moments, delta)
        for name, amount in (("keep_gb", keep_gb), ("patience_s", patience_s)):
            if amount is not None and not amount > 0:
                raise ConfigError(f"{name}={amount} must be more than 0")
        if (why := refusal(mb_per_s or 0, patience_s)) is not None:
            raise ConfigError(f"mb_per_s={mb_per_s} with patience_s={patience_s:g}: {why}")
        if _faults:
            faultpoint.arm(_faults, Member("trainer", 0), Path(gettempdir()))
        self._store = open_store(os.fspath(url))
        self._every = every
        self._writes = writes
        self._shard_bytes = shard_mb * 1_000_000
        self._patience_s = patience_s
        total_bytes = None if keep_gb is None else int(keep_gb * 1e9)
        retention = Retention(last=keep_last, every=keep_every, total_bytes=total_bytes)
        self._setting = Setting(
            url=self._store.url,
            retention=retention,
            bytes_per_s=(mb_per_s or 0) * 1_000_000,
            delta=delta,
            moments=moments or "",
            faults=_faults,
        )
        self._account = Account()
        self._saving: Saving | None = None
        self._tracked = Tracked()
        self._newest = -1
        """The highest step saved or restored; -1: none."""
        self._is_closed = False
        self._pid = os.getpid()
        self._forecast = None if writes is False else Forecast(self._foresee)
        _living.add(self)
        atexit.register(self._leave)

    def save(self, step: int, *, force: bool = False, **objects: object) -> bool:
        """Begin a save, if the step is a multiple of `every` or it is forced: was it begun? Waits only while the two saves
        before this one are not durable yet.

        The state is that of this very moment, whatever training does next. Do not write through `.data` or numpy views, and
        do not replay a captured optimizer step, before `copied()`."""
        begins = self._is_writing() and (force or step % self._every == 0)
        tracked = self._named(objects, looks=not begins)  # to lay a save out is to look
        self._account.tell()
        if step < 0 or step < self._newest:
            raise ConfigError(f"save({step}) after step {self._newest}: steps go up, unless restore() goes back")
        if begins:
            try:
                self._writer().begin(step, tracked)
            except ConfigError:
                self._tracked = Tracked()  # what it refused is looked at by the next call as well
                raise
            self._newest = step
        elif self._is_writing():
            self._writer().prepare(tracked)
        return begins

    def restore(self, **objects: object) -> int | None:
        """Load the newest checkpoint that is whole into these objects, in place; its step, or None when there is none.

        What this process saved last comes from its memory while that holds it, and anything else from the store. All ranks
        call this; each reads a part and passes it on. `report()` tells what served it.

        ConfigError, and nothing overwritten, when the checkpoint is of other objects or another model; StateError when there
        are checkpoints and all are damaged, or what is left is of something else; PeerError, in every rank, when one goes
        away meanwhile; InfraError when the store refuses: no older one is taken for that. After any but a ConfigError the
        objects may hold parts of one."""
        tracked = self._named(objects)
        self._settle()
        near = None
        if self._saving is not None:
            self._saving.copied()
            near = self._saving.recollection()
        archive = Archive(self._store)
        begun_s = time.monotonic()
        try:
            with Ranks() as ranks:
                found = restore(archive, tracked, ranks, near, self._account.noticed)
        finally:
            self._account.tell()
        pointer = None if found is None else found.pointer
        self._newest = -1 if pointer is None else pointer.step
        if self._is_writing():
            self._writer().take_term(archive.newest_term() + 1)
            self._writer().prepare(tracked)
        if found is not None:
            seconds = time.monotonic() - begun_s
            self._account.restored(found.pointer.step, found.where, found.served, found.passed_bytes, seconds)
        return None if pointer is None else pointer.step

    def copied(self) -> None:
        """Wait until the last save has its copy: whatever changes parameters behind torch's back comes after this."""
        self._check()
        if self._saving is not None:
            self._saving.copied()

    def wait(self) -> None:
        """Until every save begun is durable or given up. Raises what a save was given up for, once for each wait."""
        self._check()
        self._settle()
        self._account.tell()
        self._account.raise_given_up()

    def report(self) -> Report:
        """What has become of this process's saves so far."""
        return self._account.report()

    def close(self) -> None:
        """Wait for the saves under way and the removal of old ones, then end the writer and free the memory. What was given
        up is a warning, and so is what could not be removed."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._settle()
        self._is_closed = True
        if self._forecast is not None:
            self._forecast.close()
        if self._saving is not None:
            self._saving.close()
        atexit.unregister(self._leave)
        _living.discard(self)
        self._account.tell()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check(self) -> None:
        if self._is_closed:
            raise ConfigError(f"the Checkpointer of {self._store.url} is closed: make a new one")
        if os.getpid() != self._pid:
            raise ConfigError(f"the Checkpointer of {self._store.url} belongs to process {self._pid}, which forked this one")

    def _named(self, objects: dict[str, object], looks: bool = True) -> Tracked:
        """The objects, by name: the order in which they are given means nothing. `looks`: at what new ones hold."""
        self._check()
        if not objects:
            raise ConfigError("name what is to be saved or restored, for example model=model, optimizer=optimizer")
        if self._forecast is not None:
            self._forecast.end()
        named = dict(sorted(objects.items()))
        if list(named) != list(self._tracked.objects) or any(named[key] is not self._tracked.objects[key] for key in named):
            tracked = Tracked()
            for name, thing in named.items():
                tracked.add(name, thing, looks)
            self._tracked = tracked
        return self._tracked

    def _is_writing(self) -> bool:
        return Ranks().rank == 0 if self._writes is None else self._writes

    def _writer(self) -> Saving:
        if self._saving is None:
            self._saving = Saving(
                self._setting, shard_bytes=self._shard_bytes, patience_s=self._patience_s, account=self._account
            )
        return self._saving

    def _foresee(self, size_bytes: int) -> None:
        if self._is_writing():
            self._writer().foresee(size_bytes)

    def _settle(self) -> None:
        self._account.wait(f"waiting for saves to {self._store.url}")

    def _leave(self) -> None:
        """The interpreter ends, and nobody has closed this."""
        if os.getpid() == self._pid and self._account.open:
            print(f"regrow: waiting until {self._account.open} saves are durable", file=sys.stderr, flush=True)
        self.close()


def _check_moments(moments: str, delta: int) -> None:
    asked = f"moments={moments!r}"
    if moments not in MODES:
        raise ConfigError(f"{asked}: choose one of {', '.join(map(repr, MODES))}, or None for exact ones")
    if WorkerDoor.from_environ(os.environ) is not None:
        raise ConfigError(f"{asked} under `regrow run`: a job promises equal bits, and these are not; leave it out there")
    if delta:
        raise ConfigError(f"{asked} and delta={delta}: give one of them; deltas are exact, and of an exact state")
    need_packages(asked)


_living: "weakref.WeakSet[Checkpointer]" = weakref.WeakSet()


def _let_go() -> None:
    """A forked child keeps neither the arenas' memory nor the writer alive, and prepares none."""
    for checkpointer in _living:
        if checkpointer._forecast is not None:
            checkpointer._forecast.close()
        if checkpointer._saving is not None:
            checkpointer._saving.let_go()


os.register_at_fork(after_in_child=_let_go)
