"""What the operator chose for a job. It travels to a coordinator elsewhere, and must outlive it."""

from typing import Literal

import msgspec

from regrow.core.budget import BudgetConfig
from regrow.core.speeds import SpeedConfig


class MembershipConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chose."""

    replicas: tuple[str, ...]
    lanes: int | None = None
    """None: as the first member to join says."""
    lease_s: float = 30.0
    """Silence after which a member is evicted. Fencing does not rest on it."""
    grace_s: float = 1.0
    """How long a complaint may wait for the death that explains it before the same members re-form."""
    budget: BudgetConfig = BudgetConfig()
    min_replicas: int = 1
    """The job waits while fewer replicas than this work, and ends once fewer may still run; a restarted one may."""
    max_replicas: int | None = None
    """No wish makes more work."""
    spares: int = 0
    """Replicas beyond those that work: joined, and parked until one of them is needed."""
    shadow: bool = False
    """Spares are seated, and stay in step: taking over is a matter of lanes alone."""
    speeds: SpeedConfig = SpeedConfig()
    on_loss: Literal["redistribute", "shrink"] = "redistribute"
    """Whether the lanes of a lost replica go to the others, or are left out until it is back."""
    on_poison: Literal["stop", "skip"] = "stop"
    """Whether a lane that kills its replicas ends the job, or is left out of its step."""
    poison_after: int = 2
    """Deaths of different replicas in the same lane of the same step that make it poison."""
    keeps: bool = False
    """There is a vault: the state outlives the replicas, and with all of them lost the job goes on from what it holds."""
    logs: bool = False
    """Every committed step is in logs besides: such a loss takes none of them back."""
    max_job_restarts: int = 5
    """Foundings in a row, after a loss of all replicas, that may come no further before the job is given up."""
    resumes: bool = False
    """The job begins from a saved state: the newest one, from the beginning where there is none."""
    resume_step: int | None = None
    """Or from that of this step, and from no other."""
    new_mathematics: bool = False
    """It may begin from one that was saved with other mathematics."""
    script: str = "the script"
    """Its name, for people."""
