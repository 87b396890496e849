"""Random generators as pure functions of keys, so that a resumed run repeats the original one."""

from __future__ import annotations

import hashlib

import numpy as np


def derived_seed(*keys: int | str) -> int:
    """A 63-bit seed from any keys, the same in every process and on every machine."""
    text = "\x1f".join(str(key) for key in keys)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*keys: int | str) -> np.random.Generator:
    """A generator seeded by `keys`, such as (seed, epoch, sample id)."""
    return np.random.Generator(np.random.Philox(derived_seed(*keys)))
