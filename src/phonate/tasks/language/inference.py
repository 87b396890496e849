"""Text generation with a trained run."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, overload

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.config.randomness import derived_seed
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.nn.pretrained import (
    base_fingerprint,
    base_has_changed,
    copy_tensors,
    from_config,
    needs_no_base,
    require,
    saved_tensors,
    with_base,
)
from phonate.tasks.language import model as models
from phonate.tasks.language.settings import LanguageRecipe
from phonate.training.checkpoints.loading import TrainedModel, open_trained
from phonate.training.inference import Demonstration, Device, Inference, inference_device

MAX_TOKENS = 200
TEMPERATURE = 0.7
MIN_TEMPERATURE = 1e-3
"""Scores are divided by the temperature; a lower one would overflow."""
_DEMONSTRATION = ("The", 40)
"""Prompt and number of tokens."""


class Generator(Inference):
    """Answers prompts or continues texts with a run's model."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TextTokenizer,
        chat: bool,
        recipe: LanguageRecipe,
        inference_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """`chat`: the model was trained on conversations, so prompts are answered and not continued; `recipe`: the
        run's; `inference_metadata`: what the task saved with the checkpoint."""
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.chat = chat
        self.recipe = recipe
        self.inference_metadata = dict(inference_metadata or {})

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None, base: str | Path | None = None) -> Self:
        """The model of a run (its best checkpoint, or else its newest) or of one checkpoint, on `device` (None: cpu).

        `base`: a folder with the model that adapters or layers were trained on, or its name on the hub; None: where it
        was in training.

        Raises CheckpointError if there is none, or it is damaged, of another task, or its base has changed, and
        InputError where the base is not there.
        """
        trained = open_trained(source, "language", LanguageRecipe)
        settings = trained.recipe.model
        require("transformers", *(["peft"] if settings.adapted else []))
        if settings.trains == "full":
            if base is not None:
                raise needs_no_base(source)
            model = from_config(trained.inference_metadata["config"])
            tokenizer = TextTokenizer.from_exported(trained.inference_metadata["tokenizer"])
        else:
            trained = replace(trained, recipe=with_base(trained.recipe, base, trained.path))
            model, tokenizer = _base_of(trained, device)
        copy_tensors(saved_tensors(model, trained_only=settings.trains != "full"), trained.weights)
        metadata = trained.inference_metadata
        return cls(model, tokenizer, bool(metadata["answered"]), trained.recipe, metadata).to(device)

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The language model."""
        return (self.model,)

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """The continuation of a short prompt."""
        prompt, tokens = _DEMONSTRATION
        summary = f'After "{prompt}" it writes {self.generate(prompt, max_tokens=tokens)!r}'
        return Demonstration(summary, 'phonate generate {run} "..."')

    @overload
    def generate(
        self, prompt: str, max_tokens: int = MAX_TOKENS, temperature: float = TEMPERATURE, seed: int = 0
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: list[str] | tuple[str, ...],
        max_tokens: int = MAX_TOKENS,
        temperature: float = TEMPERATURE,
        seed: int = 0,
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str | list[str] | tuple[str, ...],
        max_tokens: int = MAX_TOKENS,
        temperature: float = TEMPERATURE,
        seed: int = 0,
    ) -> str | list[str]:
        """The answer to `prompt`, if the model was trained on conversations, or else the continuation of a text.

        Args:
            prompt: Any text; it may be empty if texts are continued. Or a list of them, of which as many are completed
                at a time as a training batch has sequences.
            max_tokens: Tokens to generate, at most; the model may end sooner.
            temperature: 0 takes the most likely token each time; 1 samples from the model's distribution; higher is
                more random.
            seed: The same seed gives the same text.

        Raises InputError for an empty or too long prompt, or a number out of range.
        """
        _check_options(max_tokens, temperature)
        prompts = [prompt] if isinstance(prompt, str) else prompt
        texts = self._complete([self._encoded(one) for one in prompts], max_tokens, temperature, seed)
        return texts[0] if isinstance(prompt, str) else texts

    def stream(
        self, prompt: str, max_tokens: int = MAX_TOKENS, temperature: float = TEMPERATURE, seed: int = 0
    ) -> Iterator[str]:
        """What `generate` gives, in pieces as they are made; the pieces add up to the same text.

        Raises InputError as `generate`, before the first piece.
        """
        _check_options(max_tokens, temperature)
        ids = self._encoded(prompt)
        return self._streamed(ids, self._room(ids, max_tokens), temperature, seed)

    def answers(self, contexts: Sequence[Sequence[int]], max_tokens: int) -> list[str]:
        """The most likely answer to each of `contexts` (token ids), token by token.

        Raises InputError for a context that leaves no room for an answer.
        """
        return self._complete(contexts, max_tokens, 0.0, 0)

    def _complete(self, contexts: Sequence[Sequence[int]], max_tokens: int, temperature: float, seed: int) -> list[str]:
        """Complete `contexts` in batches, those of like length together."""
        if not contexts:
            return []
        room = [self._room(ids, max_tokens) for ids in contexts]
        order = sorted(range(len(contexts)), key=lambda i: (room[i], len(contexts[i])))
        size = self.recipe.training.batch_size if self._masks_padding(contexts) else 1
        completions: dict[int, str] = {}
        for most, same in itertools.groupby(order, key=lambda i: room[i]):
            group = list(same)
            for members in (group[start : start + size] for start in range(0, len(group), size)):
                batch = [contexts[i] for i in members]
                output = self._run(batch, max_new_tokens=most, **_sampling(temperature, seed, len(batch), self.device))
                start = max(len(ids) for ids in batch)
                texts = (self.tokenizer.decode(self._until_end(row)) for row in output[:, start:].tolist())
                completions |= zip(members, texts, strict=True)
        return [completions[i] for i in range(len(contexts))]

    def _streamed(self, ids: Sequence[int], most: int, temperature: float, seed: int) -> Iterator[str]:
        """Generate in a thread, which ends with the iterator."""
        from transformers import StoppingCriteriaList, TextIteratorStreamer

        make: Any = TextIteratorStreamer  # untyped
        streamer = make(self.tokenizer.tokenizer, skip_prompt=True, skip_special_tokens=True)
        closed = threading.Event()
        failures: list[Exception] = []

        def stop(input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
            return torch.full((len(input_ids),), closed.is_set(), device=input_ids.device)

        def work() -> None:
            try:
                options = _sampling(temperature, seed, 1, self.device)
                criteria = StoppingCriteriaList([stop])
                self._run([ids], max_new_tokens=most, streamer=streamer, stopping_criteria=criteria, **options)
            except Exception as error:  # noqa: BLE001  # raised again by the iterator
                failures.append(error)
                streamer.end()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield from (piece for piece in streamer if piece)
        finally:
            closed.set()
            thread.join()
        if failures:
            raise failures[0]

    def _encoded(self, prompt: str) -> list[int]:
        """A prompt as token ids. Raises InputError if there are none."""
        ids = self.tokenizer.encode_prompt(prompt, self.chat)
        if not ids:
            raise InputError("the prompt is empty, and this model's tokenizer has no token to begin with")
        return ids

    def _room(self, ids: Sequence[int], max_tokens: int) -> int:
        """How many tokens may follow `ids`, at most `max_tokens`. Raises InputError if none may."""
        room = getattr(self.model.config, "max_position_embeddings", None)
        if room is None:
            return max_tokens
        if len(ids) >= room:
            raise InputError(f"the prompt has {len(ids)} tokens; the model takes fewer than {room}")
        return min(max_tokens, int(room) - len(ids))

    @torch.no_grad()
    def _run(self, contexts: Sequence[Sequence[int]], masked: bool = True, **options: Any) -> Any:
        """The result of the model's `generate` for contexts padded on the left, where the mask hides the padding (or
        not, for `masked` False)."""
        length = max(len(ids) for ids in contexts)
        input_ids = torch.tensor([[self.tokenizer.pad] * (length - len(ids)) + list(ids) for ids in contexts])
        mask = torch.tensor([[int(not masked)] * (length - len(ids)) + [1] * len(ids) for ids in contexts])
        return self.model.generate(  # type: ignore[operator]  # every causal model of transformers has it
            input_ids=input_ids.to(self.device),
            attention_mask=mask.to(self.device),
            pad_token_id=self.tokenizer.pad,
            eos_token_id=self.tokenizer.end,
            do_sample=False,
            **options,
        )

    def _masks_padding(self, contexts: Sequence[Sequence[int]]) -> bool:
        """Whether the model computes the shortest of `contexts` beside the longest as it does alone. Not all do: RWKV,
        which is recurrent, takes no mask."""
        shortest, longest = min(contexts, key=len), max(contexts, key=len)
        if len(shortest) == len(longest):
            return True
        options: dict[str, Any] = {"max_new_tokens": 1, "output_logits": True, "return_dict_in_generate": True}
        alone = self._run([shortest], **options).logits[0][0].float()
        beside, unmasked = (
            self._run([shortest, longest], masked=masked, **options).logits[0][0].float() for masked in (True, False)
        )
        # relative to the effect of attending to the padding, because 16-bit models are not exact
        return float((beside - alone).abs().max()) < 0.05 * float((unmasked - alone).abs().max()) + 1e-5

    def _until_end(self, ids: list[int]) -> list[int]:
        """`ids` up to the end token: what follows it pads the row to the longest of its batch."""
        end = self.tokenizer.end
        return ids if end is None or end not in ids else ids[: ids.index(end)]


def _check_options(max_tokens: int, temperature: float) -> None:
    if max_tokens < 1:
        raise InputError(f"max tokens {max_tokens}: must be at least 1")
    if not (temperature == 0.0 or MIN_TEMPERATURE <= temperature < float("inf")):
        raise InputError(f"temperature {temperature:g}: must be 0, or {MIN_TEMPERATURE:g} or more")


def _sampling(temperature: float, seed: int, rows: int, device: torch.device) -> Mapping[str, Any]:
    """Options of the model's `generate` that sample at `temperature`; none for 0, which takes the most likely token.

    Rows draw from generators of their own, so the global one is left alone and no row depends on the others of its
    batch, nor a stream on what its caller draws meanwhile.
    """
    if temperature == 0.0:
        return {}
    generators = [torch.Generator(device).manual_seed(derived_seed("generate", seed)) for _ in range(rows)]

    def sample(input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (rows, vocabulary) with all tokens ruled out but one, which is drawn."""
        probabilities = torch.softmax(scores / temperature, dim=-1)
        drawn = torch.cat(
            [torch.multinomial(row, 1, generator=one) for row, one in zip(probabilities, generators, strict=True)]
        )
        return torch.full_like(scores, -torch.inf).scatter(1, drawn[:, None], 0.0)

    return {"logits_processor": [sample]}


def _base_of(trained: TrainedModel[LanguageRecipe], device: Device | None) -> tuple[nn.Module, TextTokenizer]:
    """The base that a checkpoint's adapters or layers belong to, on `device`, ready to take them."""
    settings = trained.recipe.model
    assert settings.name is not None
    model = models.prepare(models.load_base(settings, inference_device(device)), settings)
    tokenizer = TextTokenizer.load(settings.name)
    if base_fingerprint(model) != trained.inference_metadata["base"]:
        raise base_has_changed(trained.path, "other weights", settings.name)
    if tokenizer.fingerprint != trained.inference_metadata["fingerprint"]:
        raise base_has_changed(trained.path, "another tokenizer", settings.name)
    return model, tokenizer
