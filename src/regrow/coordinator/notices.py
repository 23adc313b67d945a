"""What a coordinator tells people, in words."""

from regrow.core.membership_effects import Founded, Granted, Lost, Made, Poisoned, Spared, Unfounded, WishTold
from regrow.core.roster import Member

Notice = Made | Granted | Lost | Unfounded | Founded | Poisoned | Spared | WishTold

_NAMES_MAX = 20


def told(notice: Notice) -> str:
    if isinstance(notice, Lost):
        if notice.left < notice.needed:
            return f"{notice.replica} will not be restarted: {notice.why}"
        left = f"{notice.left} {'replica is' if notice.left == 1 else 'replicas are'} left"
        return f"the job goes on without {notice.replica}: {notice.why}; {left}"
    if isinstance(notice, Granted):
        restart = notice.restart
        when = f"in {restart.delay_s:g} s" if restart.delay_s else "at once"
        return f"{notice.member} starts {when}: restart {restart.used} of {restart.limit} within {restart.window_s:g} s"
    if isinstance(notice, Poisoned):
        then = "the step goes on without it" if notice.decision == "skip" else "the job stops before that step"
        return f"{notice.poison.words(notice.samples)}; {then}"
    if isinstance(notice, Spared):
        return f"{notice.member} is left alone: {notice.why}"
    if isinstance(notice, Unfounded):
        return f"{notice.why}; looking for a saved state (steps up to {notice.reached} were committed)"
    if isinstance(notice, Founded):
        origin = notice.origin
        others = f"; from here on it is another job: {'; '.join(notice.differences)}" if notice.differences else ""
        if notice.is_start:
            return f"the job goes on from step {origin.through}{others}"
        lost = notice.reached - origin.through
        back = f"{lost} {'step is' if lost == 1 else 'steps are'} computed again" if lost > 0 else "no step is lost"
        records = f"{origin.records} record{'' if origin.records == 1 else 's'} after step {origin.step}"
        where = f"{origin.where} and {records}" if origin.records else origin.where
        return f"the job goes on from step {origin.through}, from {where}: {back}{others}"
    if isinstance(notice, WishTold):
        why = f": {notice.why}" if notice.why else ""
        return f"{notice.wish}: {notice.state}{why}"
    waits = f"; the job waits: {notice.roster.waits}" if notice.roster.waits else ""
    return f"roster {notice.roster.version} ({notice.why}): {_names(notice.roster.members)}{waits}"


def _names(members: tuple[Member, ...]) -> str:
    """No more than a person reads."""
    rest = [f"{len(members) - _NAMES_MAX} others"] if len(members) > _NAMES_MAX else []
    return ", ".join([*map(str, members[:_NAMES_MAX]), *rest])


def is_routine(notice: Notice) -> bool:
    """How the job answers a failure that was told already: nobody has to do anything about it."""
    return (isinstance(notice, Made) and not notice.roster.waits) or isinstance(notice, Granted)


def idle(replicas: int, lanes: int) -> str | None:
    """A warning, when some replicas have nothing to compute."""
    if replicas <= lanes:
        return None
    return f"warning: {replicas} replicas share {lanes} lanes: {replicas - lanes} of them will compute nothing"
