"""A worker's door: what the agent tells it through the environment. Read once, here; nothing else in a worker reads it."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from regrow.core.errors import ConfigError
from regrow.core.neighbour import PATIENCE_S
from regrow.core.order import DataFrom
from regrow.core.roster import Endpoint, Member

_PREFIX = "REGROW_"
STAMP_FD = _PREFIX + "STAMP_FD"
"""Set in the new process itself: nobody else knows the number."""


class WorkerDoor(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker knows of its job before it has spoken to anyone."""

    member: Member
    coordinator: Endpoint
    token: str
    """Hex. Never logged; also in the run directory, mode 0600."""
    run_dir: Path
    host: str
    """The address this worker listens on and its peers connect to."""
    lanes: int | None
    """The --lanes flag; None leaves it to the script."""
    audit_every: int = 100
    """All of the state is compared every so many steps; 0: nothing ever is."""
    bucket_bytes: int = 8 << 20
    join_queue_bytes: int = 1 << 30
    """So many bytes of records may wait for a joiner, at either end of a line."""
    grace_s: float = 30.0
    """When it is told to end, it has this long to hand over."""
    vault: str = ""
    """Where the host's vault hears workers, in the abstract namespace; empty: there is none."""
    saves: tuple[int, ...] = ()
    """The intervals of saves, in steps."""
    shard_bytes: int = 256_000_000
    """Of the largest file of a checkpoint, unless one tensor is larger."""
    log_bytes: int = 0
    """Of the logs of all members of this host; 0: it is no every-step job."""
    neighbour: str = ""
    """The URL of what its neighbour keeps of this run; empty: it has none."""
    neighbour_token: str = ""
    """Never logged, either."""
    neighbour_claim: int = 0
    neighbour_patience_s: float = PATIENCE_S
    """A step waits no longer for it."""
    data_from: DataFrom = DataFrom()
    faults: str = ""
    """Fault points to arm, for tests: see shell.faultpoint."""
    stamp_fd: int | None = None
    """The page for its stamps, by the descriptor that the new process knows it under: see shell.stamp."""

    def to_environ(self) -> dict[str, str]:
        return {
            _PREFIX + "REPLICA": self.member.replica,
            _PREFIX + "INCARNATION": str(self.member.incarnation),
            _PREFIX + "COORDINATOR": str(self.coordinator),
            _PREFIX + "TOKEN": self.token,
            _PREFIX + "RUN_DIR": str(self.run_dir),
            _PREFIX + "HOST": self.host,
            _PREFIX + "LANES": "" if self.lanes is None else str(self.lanes),
            _PREFIX + "AUDIT_EVERY": str(self.audit_every),
            _PREFIX + "BUCKET_BYTES": str(self.bucket_bytes),
            _PREFIX + "JOIN_QUEUE_BYTES": str(self.join_queue_bytes),
            _PREFIX + "GRACE_S": str(self.grace_s),
            _PREFIX + "VAULT": self.vault,
            _PREFIX + "SAVES": ",".join(map(str, self.saves)),
            _PREFIX + "SHARD_BYTES": str(self.shard_bytes),
            _PREFIX + "LOG_BYTES": str(self.log_bytes),
            _PREFIX + "DATA_FROM": str(self.data_from),
            _PREFIX + "FAULTS": self.faults,
            **(self._neighbourly() if self.neighbour else {}),
        }

    def _neighbourly(self) -> dict[str, str]:
        return {
            _PREFIX + "NEIGHBOUR": self.neighbour,
            _PREFIX + "NEIGHBOUR_TOKEN": self.neighbour_token,
            _PREFIX + "NEIGHBOUR_CLAIM": str(self.neighbour_claim),
            _PREFIX + "NEIGHBOUR_PATIENCE_S": str(self.neighbour_patience_s),
        }

    @staticmethod
    def from_environ(environ: Mapping[str, str]) -> "WorkerDoor | None":
        """None when this process was not started by `regrow run`: it is a job of one."""
        if _PREFIX + "COORDINATOR" not in environ:
            return None
        try:
            host, _, port = environ[_PREFIX + "COORDINATOR"].rpartition(":")
            lanes = environ[_PREFIX + "LANES"]
            return WorkerDoor(
                member=Member(environ[_PREFIX + "REPLICA"], int(environ[_PREFIX + "INCARNATION"])),
                coordinator=Endpoint(host, int(port)),
                token=environ[_PREFIX + "TOKEN"],
                run_dir=Path(environ[_PREFIX + "RUN_DIR"]),
                host=environ[_PREFIX + "HOST"],
                lanes=int(lanes) if lanes else None,
                audit_every=int(environ[_PREFIX + "AUDIT_EVERY"]),
                bucket_bytes=int(environ[_PREFIX + "BUCKET_BYTES"]),
                join_queue_bytes=int(environ[_PREFIX + "JOIN_QUEUE_BYTES"]),
                grace_s=float(environ[_PREFIX + "GRACE_S"]),
                vault=environ.get(_PREFIX + "VAULT", ""),
                saves=tuple(int(every) for every in environ.get(_PREFIX + "SAVES", "").split(",") if every),
                shard_bytes=int(environ.get(_PREFIX + "SHARD_BYTES", "256000000")),
                log_bytes=int(environ.get(_PREFIX + "LOG_BYTES", "0")),
                neighbour=environ.get(_PREFIX + "NEIGHBOUR", ""),
                neighbour_token=environ.get(_PREFIX + "NEIGHBOUR_TOKEN", ""),
                neighbour_claim=int(environ.get(_PREFIX + "NEIGHBOUR_CLAIM", "0")),
                neighbour_patience_s=float(environ.get(_PREFIX + "NEIGHBOUR_PATIENCE_S", PATIENCE_S)),
                data_from=DataFrom.parse(environ.get(_PREFIX + "DATA_FROM", "0:0")),
                faults=environ.get(_PREFIX + "FAULTS", ""),
                stamp_fd=int(environ[STAMP_FD]) if STAMP_FD in environ else None,
            )
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"the environment names a coordinator but is not whole ({error!r}): start workers with `regrow run`, "
                f"or unset {_PREFIX}COORDINATOR to run alone"
            ) from error
