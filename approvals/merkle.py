"""The Merkle tree over the ledger's entry hashes (RFC 9162, section 2.1): its root as it grows, and proofs about it.

Pure. What checks the proofs is in verifier.py. May import that.
"""

from collections.abc import Iterable, Sequence
from functools import cache

from .verifier import leaf, node

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""The root of no entries: SHA-256 of nothing."""


class Frontier:
    """A tree that grows at its right end, in memory for its full parts only: one hash for each 1 in the binary size."""

    def __init__(self, size: int = 0, parts: Sequence[str] = ()) -> None:
        self.size, self._parts = size, [bytes.fromhex(part) for part in parts]
        if len(self._parts) != size.bit_count():
            raise ValueError(f"A tree of {size} entries has {size.bit_count()} full parts, not {len(self._parts)}.")

    def add(self, entry_hash: str) -> None:
        grown, size = leaf(entry_hash), self.size
        while size & 1:
            grown, size = node(self._parts.pop(), grown), size >> 1
        self._parts.append(grown)
        self.size += 1

    @property
    def parts(self) -> list[str]:
        return [part.hex() for part in self._parts]

    @property
    def root(self) -> str:
        if not self._parts:
            return EMPTY
        *others, reached = self._parts
        for part in reversed(others):
            reached = node(part, reached)
        return reached.hex()


class Tree:
    """A whole tree, 32 bytes an entry, to prove things from."""

    def __init__(self, entry_hashes: Iterable[str]) -> None:
        self._leaves = [leaf(entry_hash) for entry_hash in entry_hashes]
        self.size = len(self._leaves)
        self._hash = cache(self._hashed)

    def root(self) -> str:
        return self._hash(0, len(self._leaves)).hex() if self._leaves else EMPTY

    def inclusion(self, sequence: int) -> list[str]:
        """That the entry of this number (from 1) is in the tree: what `verifier.is_included` takes."""
        return [step.hex() for step in self._path(sequence - 1, 0, len(self._leaves))]

    def consistency(self, size: int) -> list[str]:
        """That this tree begins with that of its first `size` entries: what `verifier.is_consistent` takes."""
        if size in (0, len(self._leaves)):
            return []
        return [step.hex() for step in self._growth(size, 0, len(self._leaves), whole=True)]

    def _hashed(self, start: int, end: int) -> bytes:
        if end - start == 1:
            return self._leaves[start]
        middle = start + _split(end - start)
        return node(self._hash(start, middle), self._hash(middle, end))

    def _path(self, place: int, start: int, end: int) -> list[bytes]:
        if end - start == 1:
            return []
        middle = start + _split(end - start)
        if place < middle:
            return [*self._path(place, start, middle), self._hash(middle, end)]
        return [*self._path(place, middle, end), self._hash(start, middle)]

    def _growth(self, old: int, start: int, end: int, *, whole: bool) -> list[bytes]:
        """SUBPROOF of RFC 9162; `old` counts from `start`. `whole`: the old tree's own root need not be told."""
        if old == end - start:
            return [] if whole else [self._hash(start, end)]
        half = _split(end - start)
        if old <= half:
            return [*self._growth(old, start, start + half, whole=whole), self._hash(start + half, end)]
        return [*self._growth(old - half, start + half, end, whole=False), self._hash(start, start + half)]


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1
