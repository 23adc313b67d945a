"""What the operator asks of a running job, whether it can be granted, and when it holds.

A wish that is granted is durable with the staff it led to, and stays until it holds: a coordinator that is restarted forgets
none. A refusal says what to do instead.
"""

from typing import Literal

import msgspec

from regrow.core.staff import Staff


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["scale", "leave", "migrate", "save"]
    number: int = 0
    """Given with the grant, from 1."""
    replicas: int = 0
    """To scale to."""
    replica: str = ""
    """Whose turn it is to leave, or to be replaced."""

    def __str__(self) -> str:
        match self.kind:
            case "scale":
                return f"scale to {self.replicas} replicas"
            case "leave":
                return f"{self.replica} leaves"
            case "migrate":
                return f"{self.replica} is replaced by another replica, and leaves"
            case "save":
                return "the state is saved"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How many may work."""

    least: int
    most: int | None


def refusal(wish: Wish, staff: Staff, limits: Limits) -> str | None:
    """Why it cannot be granted, and what can; None when it can."""
    if wish.kind == "scale":
        return _scale_refusal(wish.replicas, limits)
    name = wish.replica
    if name in staff.retired or name in staff.leaving or name in staff.moving:
        return f"{name} {'has left' if name in staff.retired else 'is leaving'} already: look at it with `regrow status`"
    if name not in staff.runs:
        return f"there is no replica {name}: the job has {', '.join(staff.stays) or 'none'}"
    if wish.kind == "leave" and name in staff.places:
        if staff.strength == 1:
            return f"{name} is the only one that works: scale up or migrate it first, or stop the job with Ctrl-C"
        if staff.strength - 1 < limits.least:
            return (
                f"the job would have {staff.strength - 1} replicas, and needs {limits.least} (--min-replicas): migrate "
                f"{name}, or scale up first"
            )
    return None


def _scale_refusal(replicas: int, limits: Limits) -> str | None:
    if replicas < 1:
        return "a job needs at least 1 replica: stop it with Ctrl-C"
    if replicas < limits.least:
        return f"{replicas} replicas are fewer than the job needs (--min-replicas {limits.least}): ask for at least that"
    if limits.most is not None and replicas > limits.most:
        return f"{replicas} replicas are more than the job may have (--max-replicas {limits.most}): ask for at most that"
    return None


def is_met(wish: Wish, staff: Staff, seated: frozenset[str]) -> bool:
    """Does it hold, now that all of these have entered the newest roster?"""
    if wish.kind == "scale":
        return not staff.wanted(seated) and not seated & set(staff.leaving)
    return wish.replica not in staff.runs and (wish.kind == "leave" or not staff.wanted(seated))


def overtaken(wish: Wish, staff: Staff) -> str | None:
    """Why it will never hold, since something else was wished or happened; None while it may."""
    if wish.kind == "scale" and staff.target != wish.replicas:
        return f"{staff.target} replicas are to work by now"
    if wish.kind == "leave" and wish.replica in staff.stays:
        return f"another was given up, and the job cannot do without it: {wish.replica} stays"
    if wish.kind == "migrate" and wish.replica in staff.stays and wish.replica not in staff.moving:
        return f"the replica that was to take its place was given up: {wish.replica} stays"
    return None
