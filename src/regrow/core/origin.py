"""An origin: a saved state that a job begins from, instead of what its founders built (rules S5 to S7 of ADR 0027)."""

from collections.abc import Mapping

import msgspec

from regrow.core.order import DataFrom

_FREE = ("steps", "audit every", "bucket bytes")
"""Terms that all replicas must agree on, and that do not decide what a step computes."""


DATA_FROM = "data from"
"""The term that says from where, and in whose order, samples are taken: a DataFrom."""
STREAMS = "a stream for each lane"
"""The term "data" of iterable data."""
DATASET_SIZE = "dataset size"
_SAMPLES = ("lanes", "microbatches_per_lane", "batch_size")


MEMORY = "this host's memory"
"""The tier that is nearest: the agent holds it open."""
LOGS = "the logs"
"""As OriginPassedOver names them, where one of them was harmed."""
BEGINNING = "the job's beginning"
"""Where an origin comes from that no tier holds."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The vault holds it in memory until a newer one is whole."""

    step: int
    """So many steps are committed in it."""
    root: str
    """The digest of the whole state, which everybody who loads it holds it to."""
    where: str
    """For people: the tier that it came from."""
    records: int = 0
    """So many committed records follow it in the logs of an every-step job (core.log): they are replayed onto it."""

    @property
    def through(self) -> int:
        """The job goes on at this step."""
        return self.step + self.records

    def __str__(self) -> str:
        replayed = f", and {self.records} records after it" if self.records else ""
        return f"the state of step {self.step}, {self.where}{replayed}"

    @property
    def is_beginning(self) -> bool:
        """What the job itself began from, which no tier holds: its founders built it, and hold that to the root."""
        return self.step == 0


class Founding(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is to be founded from, while that is open: from its start, or since everybody was lost, until all members
    of its first roster hold the state."""

    seeks: bool = False
    """The agent was asked for an origin, and has not answered."""
    reached: int | None = None
    """Everybody was lost, and the job had committed every step below this one; None at its start."""
    origin: Origin | None = None
    mathematics: dict[str, str] = {}
    """What the origin was saved with."""
    is_final: bool = False
    """It is the last state of a job that was finished."""


def mathematics(terms: Mapping[str, str]) -> dict[str, str]:
    """Of a contract's terms, those that must be equal for a resumed job to end with the same bits."""
    return {name: value for name, value in terms.items() if name not in _FREE}


def data_from(terms: Mapping[str, str]) -> DataFrom:
    """From which step on the job with these terms takes samples from which place of the stream."""
    return DataFrom.parse(terms.get(DATA_FROM, "0:0"))


def unused(saved: Mapping[str, str], step: int) -> DataFrom:
    """For a job that goes on from this step with other mathematics: the next sample that nobody has used, and the order of
    those that are left of its epoch. Only map-style data has such places; other data goes on by its step, or by the
    positions of its lanes."""
    if DATA_FROM not in saved:
        return DataFrom()
    begun, size = data_from(saved), int(saved[DATASET_SIZE])
    place = begun.place + (step - begun.step) * _step_size(saved)
    if place % size == 0:
        return DataFrom(step=step, place=place)
    is_old = begun.seed is not None and begun.place // size == place // size
    return DataFrom(step=step, place=place, seed=begun.seed if is_old else int(saved["seed"]), size=size)


def impossible(saved: Mapping[str, str], terms: Mapping[str, str]) -> str:
    """Why a job with these terms cannot even go on as another job; empty when it can."""
    if terms.get("data") == saved.get("data") == STREAMS and terms["lanes"] != saved["lanes"]:
        return (
            f"lanes is {terms['lanes']}, it was saved with {saved['lanes']}: each lane reads a stream of its own, and "
            "nobody could say which items others would have to read. Give the lanes that it was saved with"
        )
    return ""


def differences(saved: Mapping[str, str], terms: Mapping[str, str]) -> tuple[str, ...]:
    """In what a job is not the one that its origin was saved by, in words."""
    return tuple(
        f"{name} is {terms.get(name, '(absent)')}, it was saved with {value}"
        for name, value in sorted(saved.items())
        if terms.get(name) != value and not (name == DATA_FROM and _has_same_stream(saved, terms))
    )


def _has_same_stream(saved: Mapping[str, str], terms: Mapping[str, str]) -> bool:
    """The same samples in each step, though they are counted from another step on."""
    if DATA_FROM not in terms or any(saved[name] != terms.get(name) for name in _SAMPLES):
        return False
    size = _step_size(saved)
    one, other = data_from(saved), data_from(terms)
    return one.place - one.step * size == other.place - other.step * size and (one.seed, other.seed) == (None, None)


def _step_size(terms: Mapping[str, str]) -> int:
    """In samples."""
    lanes, microbatches, batch_size = (int(terms[name]) for name in _SAMPLES)
    return lanes * microbatches * batch_size
