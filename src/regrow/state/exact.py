"""A checkpoint as the state that it restores: also where what lies there is that state in fewer bits."""

from collections.abc import Sequence

import msgspec

from regrow.core.checkpoint import Manifest, Pointer
from regrow.core.skeleton import Json
from regrow.state.archive import Archive, untold
from regrow.state.chain import need_packages
from regrow.state.shard import Told


def exact(manifest: Manifest) -> tuple[Json, str]:
    """Skeleton and root of the state that is restored."""
    inexact = manifest.inexact
    if isinstance(inexact, msgspec.UnsetType):
        return manifest.skeleton, manifest.root
    return inexact.skeleton, inexact.root


def read_exact(
    archive: Archive, pointer: Pointer, manifest: Manifest, places: Sequence[memoryview], told: Told = untold
) -> None:
    """Fill a view of bytes for each tensor of that skeleton, by index, or raise: see Archive.read."""
    inexact = manifest.inexact
    if isinstance(inexact, msgspec.UnsetType):
        archive.read(pointer, manifest, places, told)
        return
    need_packages(f"{archive.store.url}/{pointer.folder}, whose moments are in fewer bits,")
    from regrow.state.moments import Restoring

    restoring = Restoring(inexact, manifest, places)
    archive.read(pointer, manifest, restoring.views, told)
    restoring.finish()
