"""Powerset classes: one class for each set of simultaneous speakers.

Plaquet & Bredin 2023, "Powerset multi-class cross entropy loss for neural speaker diarization".

Shapes: B items, U output frames, K speakers, P classes.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class Powerset(nn.Module):
    """The subsets of K speakers with at most `at_once` elements: the empty set, each speaker, each pair, ...

    Args:
        speakers: K.
        at_once: Maximum number of simultaneous speakers.
    """

    def __init__(self, speakers: int, at_once: int) -> None:
        super().__init__()
        if not 1 <= at_once <= speakers:
            raise ValueError(f"at_once {at_once}: must be from 1 to the number of speakers, {speakers}")
        self.at_once = at_once
        sets = [chosen for size in range(at_once + 1) for chosen in itertools.combinations(range(speakers), size)]
        members_PK = torch.zeros(len(sets), speakers)
        number_of = torch.zeros(2**speakers, dtype=torch.long)
        for number, chosen in enumerate(sets):
            members_PK[number, list(chosen)] = 1
            number_of[sum(2**speaker for speaker in chosen)] = number
        self.members_PK: Tensor
        self.register_buffer("members_PK", members_PK, persistent=False)
        self.number_of: Tensor
        self.register_buffer("number_of", number_of, persistent=False)

    def __len__(self) -> int:
        """P."""
        return len(self.members_PK)

    def classes(self, activity_BUK: Tensor) -> Tensor:
        """(B, U): the class of each frame of binary activity (B, U, K). If more than `at_once` speakers are active,
        those that are most active in the item count."""
        order_BK = activity_BUK.sum(1).argsort(dim=-1, descending=True, stable=True)
        index_BUK = order_BK[:, None, :].expand_as(activity_BUK)
        ranked_BUK = activity_BUK.gather(2, index_BUK)
        kept_BUK = ranked_BUK * (ranked_BUK.cumsum(-1) <= self.at_once)
        weights_BUK = (2**index_BUK).to(kept_BUK.dtype)
        return self.number_of[(kept_BUK * weights_BUK).sum(-1).long()]

    def activity_logits(self, scores_BUP: Tensor) -> Tensor:
        """(B, U, K): log odds that a speaker is in the set, from class logits (B, U, P)."""
        log_p_BU1P = scores_BUP.log_softmax(-1)[:, :, None, :]
        member_KP = self.members_PK.T.bool()
        inside_BUK = log_p_BU1P.masked_fill(~member_KP, -torch.inf).logsumexp(-1)
        return inside_BUK - log_p_BU1P.masked_fill(member_KP, -torch.inf).logsumexp(-1)
