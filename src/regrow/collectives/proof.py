"""Every connection of a fresh group proves knowledge of the job's token before anything of the job passes over it.

gloo takes whoever reaches its port and sends the number it expects, and offers no hook to ask for more. So the first two
things any two members send each other through gloo are a fresh nonce and

    HMAC-SHA256(token, "group" + every member's nonce in order of rank + "<roster> <rank of the sender>")

Nonces are fresh, so nothing recorded helps; the rank keeps a member's own proof from being reflected to it. An impostor in
the place of one member has another nonce there than its peers see elsewhere, so nobody's proof fits anybody's table.
"""

import hmac
import secrets

from regrow.collectives.group import Group
from regrow.core.errors import PeerError
from regrow.wire.handshake import NONCE_BYTES, Key


def prove(group: Group, key: Key, about: str) -> None:
    """Returns once every member has proven itself; else breaks the group and raises PeerError. Blocks like any operation."""
    nonces = b"".join(group.gather(secrets.token_bytes(NONCE_BYTES)))
    expected = [key.proof(b"group", nonces, f"{about} {rank}") for rank in range(group.size)]
    proofs = group.gather(expected[group.rank])
    for rank, (proof, right) in enumerate(zip(proofs, expected, strict=True)):
        if not hmac.compare_digest(proof, right):
            group.abort()
            raise PeerError(
                f"rank {rank} of {group.size} did not prove that it knows the job's token: a stranger reached gloo's port; "
                "keep --host on an address that only the job's machines can reach"
            )
