"""Conversion of arrays to compact little-endian blobs, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from swe_core.api.chain import Chain


def count(mask: NDArray[np.bool_] | NDArray[np.int64]) -> int:
    """Return the number of ids that a mask trains."""
    return int(np.count_nonzero(mask))


def blobs(
    ids: NDArray[Any], mask: NDArray[np.bool_] | NDArray[np.int64], logprobs: NDArray[np.float32]
) -> tuple[bytes, bytes, bytes]:
    """Return the stored form of a row's arrays: per id 4 bytes, 1 bit of mask and 4 bytes of logprob."""
    return ids.astype("<i4").tobytes(), np.packbits(mask != 0).tobytes(), logprobs.astype("<f4").tobytes()


def arrays(
    ids: bytes, mask: bytes, logprobs: bytes
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return the arrays of `blobs`, as copies because torch warns about read-only arrays."""
    input_ids = np.frombuffer(ids, "<i4").astype(np.int64)
    old_log_probs = np.frombuffer(logprobs, "<f4").astype(np.float32)
    bits = np.unpackbits(np.frombuffer(mask, np.uint8))
    size = len(input_ids)
    if len(old_log_probs) != size or not 0 <= len(bits) - size < 8:
        raise ValueError(f"a row has {size} ids, {len(old_log_probs)} logprobs and {len(bits)} bits of mask")
    return input_ids, bits[:size].astype(np.int64), old_log_probs


def read_chain(ids: bytes, mask: bytes, logprobs: bytes, versions: bytes, turns: bytes, cause: Any) -> Chain:
    """Return a chain from its stored columns.

    Raises:
        ValueError | TypeError: The columns do not form a chain.
    """
    input_ids, completion_mask, old_log_probs = arrays(ids, mask, logprobs)
    return Chain(
        tuple(np.frombuffer(turns, "<i4").tolist()),
        input_ids.astype(np.int32),
        completion_mask.astype(np.bool_),
        old_log_probs,
        np.frombuffer(versions, "<i4").astype(np.int32),
        cause,
    )
