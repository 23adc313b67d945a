"""The donor's side of a striped transfer: holds snapshots by key, and gives joiners the pieces they ask for.

Every joiner is served by a thread of its own, which spends its time in the kernel, without the GIL; one more digests a new
snapshot. All of them run at a low priority: while training has use for a core they leave it alone. Nothing is queued here:
a piece is read from the snapshot when the line takes it, so a slow joiner costs a thread and no memory.
"""

import socket
import threading
from collections import deque

from regrow.core.errors import PeerError
from regrow.core.messages import Digests, Need, Piece, Want
from regrow.shell.faultpoint import faultpoint
from regrow.state.snapshot import Snapshot
from regrow.wire.blocking import Blocking
from regrow.worker.niceness import be_nice

_DIGESTS = 256
"""So many are said at once: every gigabyte or so, a sign of life."""
_DIGESTS_S = 0.02
"""How often a line that has nothing else to do looks for more of them."""
_OVER = 256
"""So many keys are remembered as dropped: whoever asks for one is turned away instead of waiting for ever."""
_WAITING = 256
"""So many may wait for snapshots at once."""


class _Held:
    """A snapshot, and the digests of its pieces as they are made."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.digests: list[bytes] = []
        self.is_dropped = False

    def digest(self) -> None:
        be_nice()
        for number in range(self.snapshot.count):
            if self.is_dropped:
                return
            self.digests.append(self.snapshot.digest(number))


class Donor:
    """From any thread. `hold` before or after joiners ask; `drop` when nobody needs that snapshot any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._waiting: dict[str, list[tuple[Blocking, Want]]] = {}
        self._lines: dict[str, set[Blocking]] = {}
        self._over: deque[str] = deque(maxlen=_OVER)
        self._is_closed = False

    def hold(self, key: str, snapshot: Snapshot) -> None:
        """Serve it under this key, also to those who asked before."""
        held = _Held(snapshot)
        with self._lock:
            if self._is_closed or key in self._over:
                return
            former = self._held.get(key)
            if former is not None and former.snapshot is snapshot:
                return
            self._held[key] = held
            come = self._waiting.pop(key, [])
            for line, want in come:
                self._begin(key, line, want, held)
        threading.Thread(target=held.digest, name="regrow-digest", daemon=True).start()
        faultpoint("snapped", step=snapshot.step)

    def drop(self, key: str) -> None:
        """Whoever waits for it or is being served is turned away. Its memory is free once the last thread has noticed."""
        with self._lock:
            self._over.append(key)
            held = self._held.pop(key, None)
            if held is not None:
                held.is_dropped = True
            lines = [*self._lines.pop(key, ()), *(line for line, _ in self._waiting.pop(key, ()))]
        for line in lines:
            line.shut()

    def answer(self, sock: socket.socket, early: bytes, want: Want) -> None:
        """A joiner's line, which has passed the door and left its loop. Returns at once."""
        line = Blocking(sock, early, str(want.member))
        with self._lock:
            waiting = sum(map(len, self._waiting.values()))
            if not self._is_closed and want.key not in self._over and waiting < _WAITING:
                held = self._held.get(want.key)
                if held is None:
                    self._waiting.setdefault(want.key, []).append((line, want))
                else:
                    self._begin(want.key, line, want, held)
                return
        line.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            keys = {*self._held, *self._waiting, *self._lines}
        for key in keys:
            self.drop(key)

    def _begin(self, key: str, line: Blocking, want: Want, held: _Held) -> None:
        self._lines.setdefault(key, set()).add(line)
        threading.Thread(target=self._serve, args=(key, line, want, held), name="regrow-donor", daemon=True).start()

    def _serve(self, key: str, line: Blocking, want: Want, held: _Held) -> None:
        be_nice()
        try:
            if want.step == held.snapshot.step:
                _give(line, held)
        except PeerError:
            pass  # it has what it needs, or is gone: either way it is not ours to say
        finally:
            with self._lock:
                self._lines.get(key, set()).discard(line)
            line.close()


def _give(line: Blocking, held: _Held) -> None:
    """Until the joiner hangs up."""
    snapshot = held.snapshot
    line.send(snapshot.offer)
    faultpoint("offered", step=snapshot.step)
    said = 0
    while True:
        made = held.digests[said : said + _DIGESTS]
        if len(made) == _DIGESTS or (made and said + len(made) == snapshot.count) or said == snapshot.count == 0:
            line.send(Digests(start=said, digests=b"".join(made)))
            said += len(made)
            faultpoint("declared", step=snapshot.step)
        message = line.next_message()
        if message is None:
            line.wait_readable(_DIGESTS_S if said < snapshot.count else None)
            continue
        if not isinstance(message, Need) or not all(0 <= piece < snapshot.count for piece in message.pieces):
            raise PeerError(f"{line.peer} needs something that this snapshot does not have")
        for number in message.pieces:
            if held.is_dropped:
                raise PeerError("dropped")
            piece = snapshot.piece(number)
            line.send(Piece(number=number))
            line.send_raw(piece[: len(piece) // 2])
            faultpoint("serving", step=snapshot.step)
            line.send_raw(piece[len(piece) // 2 :])
