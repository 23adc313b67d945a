"""When the base of a log is renewed: a pure function of what the log holds and of measured seconds (rule L6)."""

import msgspec

_OVERHEAD = 0.01
"""Of the time of training: more than this share is not spent on bases only to make a founding faster."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """In seconds, as far as this process has measured them. Before it has, a load takes as long as the last save took to
    become whole, and a replay as long as the user's loop takes from one commit to the next step."""

    load_s: float
    """Of a base into the live state, and all that comes before that when a job is founded."""
    replay_s: float
    """Of one record."""
    save_s: float
    """That training waits for a save."""
    step_s: float


def renewal(records: int, costs: Costs, used_bytes: int, room_bytes: int) -> str | None:
    """Why a newer base is to be saved than the one that so many records follow; None: that one will do.

    Whoever asks has no save under way. A log that is half full wishes one whatever it costs: the other half is for the
    records that are committed until it is whole.
    """
    if 2 * used_bytes >= room_bytes:
        return f"the log is half full: {used_bytes / 1e6:.0f} of {room_bytes / 1e6:.0f} MB"
    replay_s = records * costs.replay_s
    if replay_s < costs.load_s or costs.save_s > _OVERHEAD * records * costs.step_s:
        return None
    return f"to replay {records} records would take {replay_s:.1f} s, to load a base {costs.load_s:.1f} s"
