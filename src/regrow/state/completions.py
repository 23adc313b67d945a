"""Markers of finished jobs in a store, each named after the pointer of the job's last checkpoint (core.completion)."""

import msgspec

from regrow.core.completion import Completion
from regrow.core.errors import StateError
from regrow.state.pointers import Pointers
from regrow.state.store import Store


def completion_at(store: Store) -> Completion | None:
    """Of the job whose last checkpoint is the newest here; None also where its marker cannot be read."""
    numbers = Pointers(store).numbers()
    data = store.read(_path(numbers[0])) if numbers else None
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Completion)
    except msgspec.MsgspecError:
        return None  # whoever wrote it is to be asked again: the job goes on, and finds that nothing is left


def mark(store: Store, completion: Completion) -> None:
    """Durable once this returns. StateError where the newest checkpoint is not the one that is meant."""
    pointers = Pointers(store)
    pointer = pointers.newest(pointers.numbers())
    if pointer is None or pointer.step != completion.step:
        newest = "none" if pointer is None else f"that of step {pointer.step}"
        raise StateError(f"the newest checkpoint at {store.url} is {newest}, and the job ended at step {completion.step}")
    store.create(_path(pointer.number), msgspec.json.encode(completion))


def _path(number: int) -> str:
    return f"finished/{number:012d}.json"
