"""What is kept: never none, and what was asked for."""

from hypothesis import given
from hypothesis import strategies as st

from regrow.core.checkpoint import Pointer
from regrow.core.retention import Retention, doomed

limits = st.none() | st.integers(1, 6)


@st.composite
def histories(draw: st.DrawFn) -> list[Pointer]:
    """Newest first."""
    saves = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=12))
    return [
        Pointer(digest="", number=number, term=1, step=step, folder=f"f{number}", manifest="", size_bytes=size)
        for number, (step, size) in reversed(list(enumerate(saves, 1)))
    ]


def dumb(pointers: list[Pointer], retention: Retention) -> list[Pointer]:
    """The second implementation: throw everything out that no rule asks for, then the oldest until the rest fits."""
    kept = list(pointers)
    if (retention.last, retention.every) != (None, None):
        wanted = pointers[: retention.last] if retention.last is not None else []
        wanted += [p for p in pointers if retention.every is not None and p.step % retention.every == 0]
        kept = [p for p in pointers if p in wanted or p is pointers[0]]
    while len(kept) > 1 and retention.total_bytes is not None and sum(p.size_bytes for p in kept) > retention.total_bytes:
        kept.pop()
    return [p for p in reversed(pointers) if p not in kept]


@given(histories(), limits, limits, st.none() | st.integers(0, 60))
def test_the_rules_keep_what_they_say(
    pointers: list[Pointer], last: int | None, every: int | None, total_bytes: int | None
) -> None:
    retention = Retention(last=last, every=every, total_bytes=total_bytes)
    gone = doomed(pointers, retention)
    assert list(gone) == dumb(pointers, retention)
    assert not pointers or pointers[0] not in gone, "the newest is never doomed, so the only one is not"


@given(histories(), st.lists(st.booleans(), min_size=12, max_size=12), limits, limits, st.none() | st.integers(0, 60))
def test_what_a_kept_delta_is_built_on_stays_and_takes_room(
    pointers: list[Pointer], are_deltas: list[bool], last: int | None, every: int | None, total_bytes: int | None
) -> None:
    pairs = zip(pointers, pointers[1:], are_deltas, strict=False)
    bases = {newer.folder: older.folder for newer, older, is_delta in pairs if is_delta}
    retention = Retention(last=last, every=every, total_bytes=total_bytes)
    gone = doomed(pointers, retention, bases)
    left = [pointer.folder for pointer in pointers]
    for pointer in gone:
        left.remove(pointer.folder)
        assert all(bases[folder] in left for folder in left if folder in bases), "whoever dies here leaves whole ones"
    asked = [pointer for pointer in pointers if pointer not in dumb(pointers, Retention(last=last, every=every))]
    while (
        len(asked) > 1 and total_bytes is not None and sum(p.size_bytes for p in held(asked, pointers, bases)) > total_bytes
    ):
        asked.pop()
    assert set(left) == {pointer.folder for pointer in held(asked, pointers, bases)}


def held(kept: list[Pointer], pointers: list[Pointer], bases: dict[str, str]) -> list[Pointer]:
    """With all that they are built on."""
    folders = {pointer.folder for pointer in kept}
    for pointer in pointers:
        if pointer.folder in folders and pointer.folder in bases:
            folders.add(bases[pointer.folder])
    return [pointer for pointer in pointers if pointer.folder in folders]


def test_a_zero_keeps_the_newest_all_the_same() -> None:
    (newest, older) = [
        Pointer(digest="", number=n, term=1, step=n, folder=f"f{n}", manifest="", size_bytes=1) for n in (2, 1)
    ]
    assert doomed([newest, older], Retention(last=0, total_bytes=0)) == (older,)
    assert doomed([newest, older], Retention()) == ()
