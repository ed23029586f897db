"""Agreement: one secret key for each session of the test runner, over a stream that all inside can read.

Diffie and Hellman's key agreement in the group 5 of RFC 3526: each side makes a secret number and gives away
its *half*, 2 to the power of that number. The key follows from one of the numbers and both halves.
`reporter/common.py` is the other side. No key is on a disk, and what is there is useless to an attacker.
"""

from __future__ import annotations

import hashlib
import secrets

PRIME = int(  # RFC 3526, group 5; its generator is 2
    "ffffffffffffffffc90fdaa22168c234c4c6628b80dc1cd129024e088a67cc74020bbea63b139b22514a08798e3404dd"
    "ef9519b3cd3a431b302b0a6df25f14374fe1356d6d51c245e485b576625e7ec6f44c42e9a637ed6b0bff5cb6f406b7ed"
    "ee386bfb5a899fa5ae9f24117c4b1fe649286651ece45b3dc2007cb8a163bf0598da48361c55d39a69163fa8fd24cf5f"
    "83655d23dca3ad961c62f356208552bb9ed529077096966d670c354e4abc9804f1746c08ca237327ffffffffffffffff",
    16,
)
HALF_BYTES = 192


class Agreement:
    """The host's side.

    Attributes:
        half: What the other side needs, in hex. It is no secret.
    """

    def __init__(self) -> None:
        self._secret = secrets.randbits(256)
        self.half = f"{pow(2, self._secret, PRIME):0{2 * HALF_BYTES}x}"

    def key(self, half: bytes) -> bytes:
        """Return the key that is shared with the side of this half, `HALF_BYTES` long."""
        shared = pow(int.from_bytes(half, "big"), self._secret, PRIME)
        return hashlib.sha256(shared.to_bytes(HALF_BYTES, "big")).digest()
