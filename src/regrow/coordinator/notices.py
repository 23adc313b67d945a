"""What a coordinator tells people, in words."""

from regrow.core.membership_effects import Lost, Made


def told(notice: Made | Lost) -> str:
    if isinstance(notice, Lost):
        return f"the job goes on without {notice.replica}: {notice.why}"
    names = ", ".join(str(member) for member in notice.roster.members)
    return f"roster {notice.roster.version} ({notice.why}): {names}"


def idle(replicas: int, lanes: int) -> str | None:
    """A warning, when some replicas have nothing to compute."""
    if replicas <= lanes:
        return None
    return f"warning: {replicas} replicas share {lanes} lanes: {replicas - lanes} of them will compute nothing"
