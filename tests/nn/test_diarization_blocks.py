"""Permutations, powerset classes, attractors and front ends, against plain computations."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from phonate.nn.diarization import (
    EncoderDecoderAttractors,
    FeatureNormalisation,
    FeatureStream,
    FrontEnd,
    Powerset,
    SplicedFrames,
    StridedConvolutions,
    among_present,
    best_permutation,
    most_active,
    pairwise_cost,
    permuted,
    shuffled,
    subsampled,
)

BATCH, FRAMES = 3, 40


def conversation(speakers: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits and activity (B, U, K), and the mask of items of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(BATCH, FRAMES, speakers, generator=generator)
    activity = (torch.rand(BATCH, FRAMES, speakers, generator=generator) > 0.6).float()
    mask = torch.arange(FRAMES) < torch.tensor([FRAMES, 25, 7])[:, None]
    return logits, activity * mask[..., None], mask


def plain_cost(logits: Tensor, activity: Tensor, mask: Tensor, order: tuple[int, ...]) -> Tensor:
    """The cross entropy (B,) of one assignment, by the definition."""
    cells = F.binary_cross_entropy_with_logits(logits, activity[:, :, list(order)], reduction="none")
    return (cells.sum(-1) * mask).sum(1)


@pytest.mark.parametrize("speakers", [1, 2, 3, 4, 5, 6])
def test_the_best_permutation_is_the_cheapest_of_all(speakers: int) -> None:
    """The exhaustive search (up to 4) and the Hungarian algorithm (beyond) alike."""
    logits, activity, mask = conversation(speakers)
    order = best_permutation(pairwise_cost(logits, activity, mask))
    orders = list(itertools.permutations(range(speakers)))
    costs = torch.stack([plain_cost(logits, activity, mask, one) for one in orders])
    for item in range(BATCH):
        own = plain_cost(logits, activity, mask, tuple(order[item].tolist()))[item]
        assert torch.isclose(own, costs[:, item].min())


def test_a_known_permutation_is_found() -> None:
    """A model that is right about everybody but in another order costs nothing after the permutation."""
    _, activity, mask = conversation(5)
    shuffle = torch.tensor([3, 0, 4, 1, 2])
    logits = (activity[:, :, shuffle] * 2 - 1) * 20
    order = best_permutation(pairwise_cost(logits, activity, mask))
    assert order.tolist() == [shuffle.tolist()] * BATCH
    assert torch.equal(permuted(activity, order), activity[:, :, shuffle])


def test_padding_has_no_part_in_a_permutation() -> None:
    """Even when it holds infinities, as the output of a model may."""
    logits, activity, mask = conversation(3)
    cost = pairwise_cost(logits, activity, mask)
    assert torch.equal(cost, pairwise_cost(logits.masked_fill(~mask[..., None], torch.inf), activity, mask))
    assert torch.equal(cost, pairwise_cost(logits, activity.masked_fill(~mask[..., None], -100.0), mask))


def test_a_model_that_has_diverged_gets_a_permutation() -> None:
    """The loss reports what is not finite, with the samples; scipy's message would not."""
    logits, activity, mask = conversation(5)
    order = best_permutation(pairwise_cost(logits * torch.nan, activity, mask))
    assert order.sort(-1).values.tolist() == [[0, 1, 2, 3, 4]] * BATCH


def test_absent_speakers_are_paired_with_the_last_columns() -> None:
    """Of two present speakers the first two columns are one each."""
    logits, activity, mask = conversation(4)
    cost = among_present(pairwise_cost(logits, activity, mask), torch.tensor([2, 0, 4]))
    order = best_permutation(cost)
    assert set(order[0, :2].tolist()) == {0, 1}
    assert sorted(order[2].tolist()) == [0, 1, 2, 3]


def test_labels_are_those_of_the_majority_of_feature_frames() -> None:
    """Half of them is enough; of the last output frame only the real ones count, whatever padding holds."""
    activity = torch.tensor([[[1], [1], [0], [0], [0], [0], [0], [1], [1], [-100], [-100]]]).float()
    mask = torch.arange(11)[None] < 9
    labels, real = subsampled(activity, mask, 4)
    assert labels[..., 0].tolist() == [[1.0, 0.0, 1.0]]
    assert real.tolist() == [[True, True, True]]
    labels, real = subsampled(activity[:, :10], mask[:, :10] & (torch.arange(10) < 4), 4)
    assert labels[..., 0].tolist() == [[1.0, 0.0, 0.0]]
    assert real.tolist() == [[True, False, False]]


def test_of_too_many_speakers_those_who_speak_most_stay_in_their_order() -> None:
    """And of too few, columns of nobody follow."""
    activity = torch.zeros(1, 10, 4)
    for column, frames in enumerate([2, 9, 1, 5]):
        activity[0, :frames, column] = 1
    kept, columns = most_active(activity, 2)
    assert columns.tolist() == [[1, 3]]
    assert torch.equal(kept, activity[:, :, [1, 3]])
    kept, columns = most_active(activity[:, :, :1], 3)
    assert columns.tolist() == [[0, -1, -1]]
    assert kept.sum(1).tolist() == [[2.0, 0.0, 0.0]]
    assert most_active(activity[:, :, :0], 2)[0].shape == (1, 10, 2)


def test_powerset_classes_are_numbered_like_pyannotes() -> None:
    """Nobody, then each speaker, then pairs in the order of their speakers."""
    powerset = Powerset(3, 2)
    assert [tuple(torch.nonzero(row)[:, 0].tolist()) for row in powerset.members_PK] == [
        *[(), (0,), (1,), (2,)],
        *[(0, 1), (0, 2), (1, 2)],
    ]
    activity = powerset.members_PK[None]
    assert powerset.classes(activity).tolist() == [list(range(7))]


def test_a_frame_with_too_many_speakers_keeps_those_who_speak_most() -> None:
    """Three at once in a model of two at once."""
    activity = torch.tensor([[[1, 1, 1], [0, 1, 1], [0, 1, 0], [0, 0, 1]]]).float()
    assert Powerset(3, 2).classes(activity).tolist() == [[6, 6, 2, 3]]


def test_odds_of_a_speaker_are_those_of_all_classes_with_them() -> None:
    """Sums of the probabilities of classes."""
    powerset = Powerset(4, 3)
    scores = torch.randn(2, 5, len(powerset), dtype=torch.float64)
    expected = scores.softmax(-1) @ powerset.members_PK.double()
    assert torch.allclose(powerset.activity_logits(scores).sigmoid(), expected, atol=1e-12)


def test_powersets_that_make_no_sense_are_refused() -> None:
    """More at once than there are speakers."""
    with pytest.raises(ValueError, match="speakers, 2"):
        Powerset(2, 3)


def test_attractors_do_not_see_padding() -> None:
    """The same in a longer batch."""
    torch.manual_seed(0)
    attractors = EncoderDecoderAttractors(8).double().eval()
    frames = torch.randn(2, 9, 8, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([9, 5])[:, None]
    found, exists = attractors(frames, mask, 3)
    alone, alone_exists = attractors(frames[1:, :5], mask[1:, :5], 3)
    assert torch.allclose(found[1], alone[0], atol=1e-12)
    assert torch.allclose(exists[1], alone_exists[0], atol=1e-12)


def test_shuffling_moves_real_frames_only() -> None:
    """What the attractors read in training."""
    frames = torch.arange(12.0).view(2, 6, 1)
    mask = torch.arange(6) < torch.tensor([6, 4])[:, None]
    torch.manual_seed(1)
    moved = shuffled(frames, mask)
    assert moved[0, :, 0].tolist() != frames[0, :, 0].tolist()
    assert sorted(moved[1, :4, 0].tolist()) == [6.0, 7.0, 8.0, 9.0]


FRONT_ENDS = {
    "frames": lambda: SplicedFrames(4, 0, 1),
    "splice": lambda: SplicedFrames(4, 7, 10),
    "narrow splice": lambda: SplicedFrames(4, 1, 10),
    "convolution 10": lambda: StridedConvolutions(4, 8, 10),
    "convolution 8": lambda: StridedConvolutions(4, 8, 8),
    "convolution 1": lambda: StridedConvolutions(4, 8, 1),
}


@pytest.fixture(params=FRONT_ENDS.values(), ids=FRONT_ENDS.keys())
def front_end(request: pytest.FixtureRequest) -> FrontEnd:
    """Each kind, in float64."""
    torch.manual_seed(0)
    made: FrontEnd = request.param().double()
    return made


def test_a_spliced_frame_is_the_middle_one_with_its_neighbours() -> None:
    """Of frames 10 to 19 number 15, and seven on each side."""
    frames = torch.arange(40.0)[None, :, None]
    out = SplicedFrames(1, 7, 10)(frames)
    assert out.shape == (1, 4, 15)
    assert out[0, 1].tolist() == [float(number) for number in range(8, 23)]
    assert out[0, 0].tolist() == [0.0, 0.0, *[float(number) for number in range(13)]]


@pytest.mark.parametrize("kind", ["none", "global", "mean", "mean_variance", "causal_mean"])
def test_padding_changes_no_real_frame(front_end: FrontEnd, kind: str) -> None:
    """Not even padding of a million."""
    normalisation = FeatureNormalisation(kind, 4).double()  # type: ignore[arg-type]
    normalisation.fit(torch.randn(100, 4) * 3 + 5)
    for frames in (1, 5, 33):
        x = torch.randn(2, frames, 4, dtype=torch.float64)
        alone = front_end(normalisation(x))
        assert alone.shape == (2, -(-frames // front_end.stride), front_end.width)
        mask = torch.arange(frames + 17) < frames
        longer = torch.cat([x, torch.full((2, 17, 4), 1e6, dtype=torch.float64)], dim=1)
        padded = front_end(normalisation(longer, mask.expand(2, -1)), mask.expand(2, -1))
        assert torch.allclose(padded[:, : alone.shape[1]], alone, atol=1e-9)


@pytest.mark.parametrize("kind", ["causal_mean", "global"])
@pytest.mark.parametrize("block", [1, 3, 7, 50])
def test_blocks_of_a_stream_give_what_the_whole_gives(front_end: FrontEnd, block: int, kind: str) -> None:
    """To rounding, for every length of blocks."""
    normalisation = FeatureNormalisation(kind, 4).double()  # type: ignore[arg-type]
    normalisation.fit(torch.randn(100, 4) * 3 + 5)
    for frames in (1, 5, 101):
        x = torch.randn(2, frames, 4, dtype=torch.float64)
        stream = FeatureStream(normalisation, front_end)
        state = stream.initial_state(x)
        parts = [stream.step(x[:, at : at + block], state, last=at + block >= frames) for at in range(0, frames, block)]
        assert torch.allclose(torch.cat(parts, dim=1), front_end(normalisation(x)), atol=1e-9)


def test_a_stream_keeps_no_more_than_its_reach(front_end: FrontEnd) -> None:
    """Constant memory."""
    stream = FeatureStream(FeatureNormalisation("causal_mean", 4), front_end)
    state = stream.initial_state(torch.zeros(1, 0, 4, dtype=torch.float64))
    for _ in range(50):
        stream.step(torch.randn(1, 13, 4, dtype=torch.float64), state)
    assert state.kept_BTF.shape[1] <= front_end.left + front_end.right + 2 * front_end.stride


def test_means_are_of_what_they_say() -> None:
    """Of the training set, of the item, with or without the deviation, or of the frames so far."""
    x = torch.randn(2, 30, 3, dtype=torch.float64) * 5 + 7
    assert torch.allclose(FeatureNormalisation("mean", 3)(x), x - x.mean(1, keepdim=True))
    scaled = FeatureNormalisation("mean_variance", 3)(x)
    assert torch.allclose(scaled.std(1, correction=0), torch.ones(2, 3, dtype=torch.float64), atol=1e-5)
    so_far = torch.stack([x[:, : frame + 1].mean(1) for frame in range(30)], dim=1)
    assert torch.allclose(FeatureNormalisation("causal_mean", 3)(x), x - so_far)
    assert torch.equal(FeatureNormalisation("none", 3)(x), x)
    fixed = FeatureNormalisation("global", 3).double()
    fixed.fit(x.flatten(0, 1))
    assert torch.allclose(fixed(x).flatten(0, 1).mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(fixed(x).flatten(0, 1).std(0, correction=0), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(fixed(x + 9) - fixed(x), 9 / fixed.deviation_F)  # louder stays louder
    assert fixed.state_dict().keys() == {"mean_F", "deviation_F"}
