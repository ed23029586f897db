"""lost: which sampled ids a whole rendering does not hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from swe_core.drift.anew import Ids, common


def lost(row: Ids, sampled: NDArray[np.bool_], rendered: Ids, ends: Callable[[int], bool]) -> int:
    """Return how many sampled ids of a row stand nowhere in `rendered`, in order.

    The two are compared as lines, as a text's versions are; of lines that differ, the common beginning and
    end count as kept.

    Args:
        sampled: Which ids of the row were sampled.
        ends: Returns whether an id ends a line.
    """
    begin = common(row, rendered)
    end = min(common(row[begin:][::-1], rendered[begin:][::-1]), len(row) - begin, len(rendered) - begin)
    row, sampled = row[begin : len(row) - end], sampled[begin : len(sampled) - end]
    if not sampled.any():
        return 0
    rendered = rendered[begin : len(rendered) - end]
    places, others = _lines(row, ends), _lines(rendered, ends)
    kept = np.zeros(len(row), np.bool_)
    matcher = SequenceMatcher(None, _texts(row, places), _texts(rendered, others))
    for kind, a, b, c, d in matcher.get_opcodes():
        start, stop = places[a], places[b]
        if kind == "equal":
            kept[start:stop] = True
        elif kind == "replace":
            ours, theirs = row[start:stop], rendered[others[c] : others[d]]
            first = common(ours, theirs)
            kept[start : start + first] = True
            kept[stop - common(ours[first:][::-1], theirs[first:][::-1]) : stop] = True
    return int((sampled & ~kept).sum())


def _lines(ids: Ids, ends: Callable[[int], bool]) -> list[int]:
    """Return where lines begin, and where the last one ends."""
    table = {id_: ends(id_) for id_ in np.unique(ids).tolist()}
    starts = [at for at, id_ in enumerate(ids.tolist(), 1) if table[id_]]
    return [0, *starts] if starts[-1:] == [len(ids)] else [0, *starts, len(ids)]


def _texts(ids: Ids, places: Sequence[int]) -> list[bytes]:
    return [ids[start:stop].tobytes() for start, stop in pairwise(places)]
