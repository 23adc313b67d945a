"""The header of a safetensors file, written and read without torch and without that package.

A file is eight bytes (the header's length), the header (JSON, padded with spaces) and the body: the tensors' bytes without a
gap. The padding makes the body start at a multiple of a page. A kind of number that the format has no word for lies there as
plain bytes; what it was is in the manifest.
"""

from collections.abc import Iterable, Mapping

import msgspec

from regrow.core.checkpoint import Leaf
from regrow.core.draft import ALIGNED_BYTES
from regrow.core.errors import StateError

_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_KINDS = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
"""torch's words for them, and the format's. Only what old releases of the package know too: a single word that is new to it
makes it refuse the whole file."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor, as headers describe it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]
    """Its first byte in the body, and the one behind its last."""


def header(leaves: Iterable[Leaf]) -> bytes:
    """Of a file in which these follow one another. The bytes before its body."""
    entries: dict[str, object] = {_METADATA: {"format": "pt"}}  # without it transformers refuses the file
    start = 0
    for leaf in leaves:
        stop = start + leaf.size_bytes
        kind = _KINDS.get(leaf.dtype)
        shape = leaf.shape if kind is not None else (leaf.size_bytes,)
        entries[leaf.name] = Entry(dtype=kind or "U8", shape=shape, data_offsets=(start, stop))
        start = stop
    text = msgspec.json.encode(entries)
    padding = -(_LENGTH_BYTES + len(text)) % ALIGNED_BYTES
    return (len(text) + padding).to_bytes(_LENGTH_BYTES, "little") + text + b" " * padding


def header_bytes(start: bytes | bytearray | memoryview) -> int:
    """How many bytes come before the body, from the file's first eight."""
    return _LENGTH_BYTES + int.from_bytes(start[:_LENGTH_BYTES], "little")


def parse(data: bytes | memoryview) -> Mapping[str, Entry]:
    """The tensors of a file by name, from all bytes before its body. StateError when they are no header."""
    try:
        raw = msgspec.json.decode(data[_LENGTH_BYTES:], type=dict[str, msgspec.Raw])
        raw.pop(_METADATA, None)
        return {name: msgspec.json.decode(entry, type=Entry) for name, entry in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateError(f"this is no safetensors header: {error}") from error
