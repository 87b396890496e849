"""FAVOR+: softmax attention approximated with positive random features, at a cost linear in the length.

Choromanski et al. 2021, "Rethinking attention with Performers". exp(q.k) is the mean of phi(q).phi(k) over Gaussian
directions w, with phi(x) = exp(w.x - |x|^2 / 2). So attention needs two sums over the keys, that of phi(k) v and that
of phi(k), and no matrix of all pairs.

The published phi subtracts the largest exponent of all keys before exp. That lets a loud frame change the earlier ones
through epsilon, and padding the real ones. Here nothing is subtracted: no exponent is above |w|^2 / 2, and they are cut
off at 30, so that sums stay finite in float32 at any loudness.

Shapes: B batch, H heads, T queries, S keys, E dimensions of a head, M random features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPSILON = 1e-4
"""Added to each feature, so that no sum of features is zero."""
LARGEST_EXPONENT = 30.0
_SMALLEST_SUM = 1e-12
"""A query with any key has a sum of at least M x EPSILON^2. One with none, in padding, gives zero instead of 0 / 0."""


def draw_projection(features: int, head_dim: int) -> Tensor:
    """(M, E) directions: orthogonal within blocks of E, each as long as a Gaussian vector (section 2.4)."""
    blocks = []
    for start in range(0, features, head_dim):
        orthogonal, _ = torch.linalg.qr(torch.randn(head_dim, head_dim))
        blocks.append(orthogonal.T[: features - start])
    lengths_M1 = torch.randn(features, head_dim).norm(dim=1, keepdim=True)
    projection_ME: Tensor = lengths_M1 * torch.cat(blocks)
    return projection_ME


class RandomFeatures(nn.Module):
    """The directions of one attention, a buffer that is saved with the weights. They are drawn on the CPU, so that a
    seed gives the same ones on every device.

    Attributes:
        redraw_interval: Optimizer steps between redraws. None: the trainer's.
        auto_redraw: Whether the trainer redraws them without being told to.
    """

    projection_ME: Tensor

    def __init__(self, features: int, head_dim: int) -> None:
        super().__init__()
        self.redraw_interval: int | None = None
        self.auto_redraw = True
        self.register_buffer("projection_ME", draw_projection(features, head_dim))

    def redraw_features(self) -> None:
        """Draw new directions with torch's global generator."""
        self.projection_ME.copy_(draw_projection(*self.projection_ME.shape))


def feature_map(x_BHTE: Tensor, projection_ME: Tensor) -> Tensor:
    """phi of queries or keys: (B, H, T, M), all positive."""
    scaled_BHTE = x_BHTE * x_BHTE.shape[-1] ** -0.25
    exponent_BHTM = scaled_BHTE @ projection_ME.T - 0.5 * scaled_BHTE.square().sum(dim=-1, keepdim=True)
    features_BHTM: Tensor = exponent_BHTM.clamp_max(LARGEST_EXPONENT).exp() + EPSILON
    return features_BHTM


class LinearSums:
    """Sums over keys: of phi(k) v, (B, H, M, E), and of phi(k), (B, H, M). All that attention keeps of them."""

    def __init__(self, weighted_BHME: Tensor, plain_BHM: Tensor) -> None:
        self.weighted_BHME = weighted_BHME
        self.plain_BHM = plain_BHM

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int], like: Tensor) -> LinearSums:
        """Sums over no keys."""
        return cls(like.new_zeros(shape), like.new_zeros(shape[:3]))

    def replace(self, other: LinearSums) -> None:
        """Take over the sums of `other`."""
        self.weighted_BHME, self.plain_BHM = other.weighted_BHME, other.plain_BHM

    def select(self, rows_B: Tensor) -> LinearSums:
        """A copy with these rows of the batch."""
        return LinearSums(self.weighted_BHME[rows_B], self.plain_BHM[rows_B])


def key_sums(key_BHSE: Tensor, value_BHSE: Tensor, projection_ME: Tensor, mask_BS: Tensor | None) -> LinearSums:
    """Sums over the keys that `mask_BS` has True for; None: all."""
    features_BHSM = _masked(feature_map(key_BHSE, projection_ME), mask_BS)
    return LinearSums(features_BHSM.transpose(-1, -2) @ value_BHSE, features_BHSM.sum(dim=2))


def read_sums(query_BHTE: Tensor, sums: LinearSums, projection_ME: Tensor) -> Tensor:
    """(B, H, T, E): attention of the queries to the keys in `sums`."""
    features_BHTM = feature_map(query_BHTE, projection_ME)
    return features_BHTM @ sums.weighted_BHME / (features_BHTM @ sums.plain_BHM[..., None]).clamp_min(_SMALLEST_SUM)


def causal_attention(
    query_BHTE: Tensor,
    key_BHTE: Tensor,
    value_BHTE: Tensor,
    projection_ME: Tensor,
    mask_BT: Tensor | None = None,
    before: LinearSums | None = None,
) -> tuple[Tensor, LinearSums]:
    """Attention (B, H, T, E) of each frame to itself and earlier ones, and the sums after the last frame."""
    query_BHTM = feature_map(query_BHTE, projection_ME)
    key_BHTM = _masked(feature_map(key_BHTE, projection_ME), mask_BT)
    weight_BHTT = (query_BHTM @ key_BHTM.transpose(-1, -2)).tril()
    out_BHTE, norm_BHT1 = weight_BHTT @ value_BHTE, weight_BHTT.sum(dim=-1, keepdim=True)
    after = LinearSums(key_BHTM.transpose(-1, -2) @ value_BHTE, key_BHTM.sum(dim=2))
    if before is not None:
        out_BHTE = out_BHTE + query_BHTM @ before.weighted_BHME
        norm_BHT1 = norm_BHT1 + query_BHTM @ before.plain_BHM[..., None]
        after = LinearSums(after.weighted_BHME + before.weighted_BHME, after.plain_BHM + before.plain_BHM)
    return out_BHTE / norm_BHT1.clamp_min(_SMALLEST_SUM), after


def _masked(features_BHTM: Tensor, mask_BT: Tensor | None) -> Tensor:
    return features_BHTM if mask_BT is None else features_BHTM * mask_BT[:, None, :, None].to(features_BHTM.dtype)
