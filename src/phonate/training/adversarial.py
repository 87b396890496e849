"""Adversarial training: least-squares losses (Mao et al. 2017, arXiv:1611.04076) and feature matching (Larsen et al.
2016, arXiv:1512.09300), as in HiFi-GAN (Kong et al. 2020, arXiv:2010.05646, equations 1 to 4).

Shapes: B batch, ... any further dimensions. A loss is a sum over the items of a batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from phonate.compute.distributed import is_sharded
from phonate.nn import kernels
from phonate.nn.sequences import on_processor
from phonate.nn.vocoder import Judgement
from phonate.training.task import Batch, Phase, Task, Terms, parameters_of

OutputT = TypeVar("OutputT")


class AdversarialSettings(Protocol):
    """The part of a task's training settings that says when and how much its discriminator counts."""

    @property
    def adversarial_start(self) -> int | None:
        """The first step in which generator and discriminator are trained against each other. None: never."""

    @property
    def adversarial_weight(self) -> float:
        """Weight of fooling the discriminator."""

    @property
    def feature_matching_weight(self) -> float:
        """Weight of the distance between what the discriminator sees in real and in fake items."""


@dataclass(frozen=True)
class Pair:
    """What a discriminator tells apart: a tensor (B, ...) each, or one for each of several discriminators."""

    fake: Any
    real: Any
    cond: Tensor | None = None
    """The condition that both belong to, such as a text. None: there is none."""


class AdversarialTask(Task, Generic[OutputT]):
    """A task whose generator is trained against a discriminator from `adversarial_start` on.

    Subclasses name both parts of the model and say what is generated, what is real, and the condition. The two take
    turns within a step; the discriminator's phase uses what the generator's phase made of the same batch. The model
    calls the discriminator on `real` or `fake`, and `cond` if there is one, for a list of `Judgement`s; or, where it
    has one, its method `of_both` on `fake`, `real` and `cond` for a list of each, which takes less time.
    """

    generator: ClassVar[str]
    """The part of the model that generates; the name of its phase."""
    discriminator: ClassVar[str]
    """The part that judges; the name of its phase."""

    def __init__(self, training: AdversarialSettings) -> None:
        self._training = training
        self._pairs: tuple[int, list[tuple[Batch, Pair, _Verdict | None]]] = (-1, [])
        """What the generator's phase of this step made, with its batches, and what the discriminator said of it."""

    @abstractmethod
    def generate(self, model: nn.Module, batch: Batch) -> OutputT:
        """What the generator makes of a batch."""

    @abstractmethod
    def generator_terms(self, model: nn.Module, output: OutputT, batch: Batch) -> Terms:
        """The generator's terms but the adversarial ones."""

    @abstractmethod
    def pair(self, output: OutputT, batch: Batch) -> Pair:
        """What the discriminator is given of the generator's output and of the batch."""

    @property
    def adversarial(self) -> bool:
        """Whether the discriminator takes part in this step."""
        start = self._training.adversarial_start
        return start is not None and self.step >= start

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The generator; then its discriminator, from its first step on."""
        generator, start = Phase(self.generator, parameters_of(self.generator)), self._training.adversarial_start
        if start is None:
            return (generator,)
        return (generator, Phase(self.discriminator, parameters_of(self.discriminator), start=start))

    def compiled_modules(self, model: nn.Module) -> Sequence[nn.Module]:
        """Generator and discriminator: nothing calls the model that holds them."""
        return [model.get_submodule(phase.name) for phase in self.phases]

    def loss_weights(self, step: int) -> Mapping[str, float]:
        """Those of the adversarial terms, from the recipe."""
        return {
            "adversarial": self._training.adversarial_weight,
            "features": self._training.feature_matching_weight,
        }

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """The generator's terms, with `adversarial` and `features` while it is trained against the discriminator;
        in the phase of that `discriminator`."""
        if phase == self.discriminator:
            return self._discriminator_terms(model, batch)
        output = self.generate(model, batch)
        terms = self.generator_terms(model, output, batch)
        if self.adversarial and model.training:
            pair = self.pair(output, batch)
            detached = replace(pair, fake=_each(pair.fake, Tensor.detach))
            discriminator = model.get_submodule(self.discriminator)
            if torch.is_grad_enabled() and _judged_once(discriminator):
                verdict = _Verdict(self, model, detached)
                fooling, distance = _Fooling.apply(verdict, *_listed(pair.fake))  # type: ignore[no-untyped-call]
            else:
                verdict = None
                with torch.no_grad():
                    real = self.judged(model, pair.real, pair.cond)
                fooling, distance = _generator_terms(self.judged(model, pair.fake, pair.cond), real)
            terms = {**terms, "adversarial": (fooling, "items"), "features": (distance, "items")}
            step, pairs = self._pairs
            others = [
                one for one in pairs if step == self.step and one[0] is not batch
            ]  # it may run for its counts, too
            self._pairs = (self.step, [*others, (batch, detached, verdict)])
        return terms

    def _discriminator_terms(self, model: nn.Module, batch: Batch) -> Terms:
        """See `_discriminator_term`; on what the generator's phase of this step made of this very batch, where it did,
        and judged, where it may (`_judged_once`)."""
        step, pairs = self._pairs
        at = next((i for i, (one, *_) in enumerate(pairs) if one is batch and step == self.step), None)
        pair, verdict = (None, None) if at is None else pairs.pop(at)[1:]
        if verdict is not None and torch.is_grad_enabled():
            loss: Tensor = _Learning.apply(verdict, *verdict.parameters)  # type: ignore[no-untyped-call]
            return {"discriminator": (loss, "items")}
        if pair is None:
            with torch.no_grad():
                pair = self.pair(self.generate(model, batch), batch)
        real, fake = (self.judged(model, inputs, pair.cond) for inputs in (pair.real, pair.fake))
        return {"discriminator": (_discriminator_term(fake, real), "items")}

    def judged(self, model: nn.Module, inputs: Any, cond: Tensor | None) -> list[Judgement]:
        """What the model's discriminator says of real or fake items, and their condition."""
        discriminator = model.get_submodule(self.discriminator)
        judgements: list[Judgement] = discriminator(inputs) if cond is None else discriminator(inputs, cond)
        return judgements

    def both_judged(
        self, model: nn.Module, fake: Any, real: Any, cond: Tensor | None
    ) -> tuple[list[Judgement], list[Judgement]]:
        """`judged` of fake and of real items, in one pass where the discriminator has one for both."""
        of_both: Any = getattr(model.get_submodule(self.discriminator), "of_both", None)
        if of_both is None:
            return self.judged(model, fake, cond), self.judged(model, real, cond)
        judgements: tuple[list[Judgement], list[Judgement]]
        judgements = of_both(fake, real) if cond is None else of_both(fake, real, cond)
        return judgements


# ------------------------------------- One forward pass of the discriminator for the phases of both


class _Verdict:
    """What the discriminator says of fake and real items of a batch, as both phases use it: within a step its weights
    change after both. Each phase asks for its own gradients of this graph, which is freed with the generator's: in the
    discriminator's own phase, those of all micro-batches would be there at once."""

    def __init__(self, task: AdversarialTask[Any], model: nn.Module, pair: Pair) -> None:
        self.parameters = list(model.get_submodule(task.discriminator).parameters())
        self.fake = _each(pair.fake, lambda one: one.detach().requires_grad_())
        with _unfrozen(self.parameters):
            fake, real = task.both_judged(model, self.fake, pair.real, pair.cond)
        without_graph = [(scores, [one.detach() for one in outputs]) for scores, outputs in real]
        self.of_generator: Sequence[Tensor] = _generator_terms(fake, without_graph)
        self.of_discriminator = _discriminator_term(fake, real)
        self._gradients: Sequence[Tensor | None] | None = None

    def gradients(self) -> Sequence[Tensor | None]:
        """Those of `of_discriminator`, by its `parameters`. The graph is freed."""
        if self._gradients is None:
            with _unfrozen(self.parameters):
                self._gradients = torch.autograd.grad(self.of_discriminator, self.parameters, allow_unused=True)
            self.of_discriminator = self.of_discriminator.detach()
        return self._gradients


@contextmanager
def _unfrozen(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Within, they require gradients, whatever phase it is."""
    frozen = [one for one in parameters if not one.requires_grad]
    for one in frozen:
        one.requires_grad_()
    try:
        yield
    finally:
        for one in frozen:
            one.requires_grad_(False)


class _Fooling(torch.autograd.Function):
    """The generator's terms of a verdict on fakes."""

    @staticmethod
    def forward(ctx: Any, verdict: _Verdict, *fake: Tensor) -> tuple[Tensor, ...]:
        ctx.verdict = verdict
        return tuple(one.detach() for one in verdict.of_generator)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        verdict: _Verdict = ctx.verdict
        of_fake = torch.autograd.grad(verdict.of_generator, _listed(verdict.fake), gradients, retain_graph=True)
        verdict.gradients()
        verdict.of_generator, verdict.fake, ctx.verdict = (), (), None
        return None, *of_fake


class _Learning(torch.autograd.Function):
    """The discriminator's term of a verdict, by its `parameters`."""

    @staticmethod
    def forward(ctx: Any, verdict: _Verdict, *parameters: Tensor) -> Tensor:
        ctx.verdict = verdict
        return verdict.of_discriminator.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(None if one is None else one * gradient for one in ctx.verdict.gradients())


def _judged_once(discriminator: nn.Module) -> bool:
    """Whether a graph of the discriminator may stay for its own phase: on a CPU, where time is scarcer than memory,
    where its weights are whole, and where it is not compiled: such graphs give memory back in a backward pass."""
    if discriminator._compiled_call_impl is not None:
        return False
    return all(on_processor(one) and not is_sharded(one) for one in discriminator.parameters())


def _listed(values: Any) -> list[Tensor]:
    return [values] if isinstance(values, Tensor) else list(values)


def _each(values: Any, function: Callable[[Tensor], Tensor]) -> Any:
    return function(values) if isinstance(values, Tensor) else [function(one) for one in values]


# --------------------------------------------------------------------------------------------- Terms


def _generator_terms(fake: Sequence[Judgement], real: Sequence[Judgement]) -> tuple[Tensor, Tensor]:
    """Fooling the discriminators, averaged over them; and the L1 distance of each of their layers' outputs for fake
    and for real items, averaged over layers."""
    fooling = [_squared(scores - 1.0) for scores, _ in fake]
    distances = [
        _distance(fake_layer, real_layer)
        for (_, fake_layers), (_, real_layers) in zip(fake, real, strict=True)
        for fake_layer, real_layer in zip(fake_layers, real_layers, strict=True)
    ]
    return torch.stack(fooling).mean(), torch.stack(distances).mean()


def _distance(fake: Tensor, real: Tensor) -> Tensor:
    """Mean L1 distance of the items of (B, ...), summed over items."""
    if on_processor(fake) and not real.requires_grad:
        distance: Tensor = _Distance.apply(fake, real)  # type: ignore[no-untyped-call]
        return distance
    return _item_means((fake - real).abs()).sum()


class _Distance(torch.autograd.Function):
    """`_distance`, item by item: each stays in the cache."""

    @staticmethod
    def forward(ctx: Any, fake: Tensor, real: Tensor) -> Tensor:
        if (fast := kernels.of(fake.dtype)) is not None and real.dtype is fake.dtype and fake.dim() == 4:
            ctx.fast, per_item = fast, fake[0].numel()
            signs_BTKC, sums_B = fast.differences(fake.permute(0, 2, 3, 1), real.permute(0, 2, 3, 1))
            ctx.save_for_backward(signs_BTKC)
            return sums_B.sum() / per_item
        ctx.fast = None
        differences, wide = torch.empty_like(fake), torch.promote_types(fake.dtype, torch.float32)
        sums = [
            torch.sub(one, other, out=room).abs().sum(dtype=wide)
            for one, other, room in zip(fake, real, differences, strict=True)
        ]
        ctx.save_for_backward(differences)
        return torch.stack(sums).sum() / differences[0].numel()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (differences,) = ctx.saved_tensors
        if ctx.fast is not None:
            of_fake_BTKC: Tensor = ctx.fast.signed_sizes(differences, grad.item() / differences[0].numel())
            return of_fake_BTKC.permute(0, 3, 1, 2), None
        of_fake, scale = torch.empty_like(differences), grad.item() / differences[0].numel()
        for room, difference in zip(of_fake, differences, strict=True):
            torch.sign(difference, out=room).mul_(scale)
        return of_fake, None


def _discriminator_term(fake: Sequence[Judgement], real: Sequence[Judgement]) -> Tensor:
    """Least squares with targets 1 for real and 0 for fake items, summed over discriminators."""
    losses = [
        _squared(real_scores - 1.0) + _squared(fake_scores)
        for (real_scores, _), (fake_scores, _) in zip(real, fake, strict=True)
    ]
    return torch.stack(losses).sum()


def _squared(errors: Tensor) -> Tensor:
    """Mean square of each item of (B, ...), summed over items."""
    return _item_means(errors.square()).sum()


def _item_means(values: Tensor) -> Tensor:
    """Mean (B,) of each item of (B, ...)."""
    return values.mean(tuple(range(1, values.dim())))
