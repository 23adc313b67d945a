"""Strategies for every message of the protocol, built from the types themselves: a new message is covered at once."""

import enum
import types
import typing

import msgspec
from hypothesis import strategies as st

from regrow.core.messages import Message

MESSAGE_TYPES: tuple[type[msgspec.Struct], ...] = typing.get_args(Message)

_SCALARS: dict[object, st.SearchStrategy[object]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    bytes: st.binary(max_size=60),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    types.NoneType: st.none(),
}


def messages() -> st.SearchStrategy[object]:
    return st.one_of(*(of_type(kind) for kind in MESSAGE_TYPES))


def of_type(kind: object) -> st.SearchStrategy[object]:
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(of_type(arguments[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of_type, arguments))
    if origin is dict:
        return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=4)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(of_type, arguments))
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    assert isinstance(kind, type) and issubclass(kind, msgspec.Struct), f"teach any_message.py about {kind}"
    fields = {name: of_type(hint) for name, hint in typing.get_type_hints(kind).items() if name in kind.__struct_fields__}
    return st.builds(kind, **fields)
