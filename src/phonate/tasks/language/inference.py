"""From a trained run to text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phonate.config.errors import CheckpointError, InputError
from phonate.config.randomness import derived_seed
from phonate.tasks.language import model as models
from phonate.tasks.language.tokenizer import TextTokenizer
from phonate.training.checkpoints.trained import TrainedModel, open_trained

MAX_TOKENS = 200
TEMPERATURE = 0.7
_COOLEST = 1e-3
"""Scores are divided by the temperature: by less, they would overflow."""


class Generator:
    """Continues and answers texts with a run's model."""

    def __init__(self, model: nn.Module, tokenizer: TextTokenizer, answered: bool, recipe: Any) -> None:
        """`answered`: prompts are answered, as in training, and not continued. `recipe` is the run's."""
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.answered = answered
        self.recipe = recipe

    @classmethod
    def load(cls, source: str | Path) -> Generator:
        """The model of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Raises CheckpointError where there is none, or it is damaged, of another task, or its base has changed.
        """
        trained = open_trained(source, "language")
        settings = trained.recipe.model
        models.require("transformers", *(["peft"] if settings.adapted else []))
        if settings.trains == "full":
            model = models.from_config(trained.inference_metadata["config"])
            tokenizer = TextTokenizer.read(trained.inference_metadata["tokenizer"])
        else:
            model, tokenizer = _on_its_base(trained)
        models.put_back(models.trained_tensors(model, everything=settings.trains == "full"), trained.weights)
        return cls(model, tokenizer, bool(trained.inference_metadata["answered"]), trained.recipe)

    @torch.no_grad()
    def generate(
        self, prompt: str, max_tokens: int = MAX_TOKENS, temperature: float = TEMPERATURE, seed: int = 0
    ) -> str:
        """What follows `prompt`: its answer, where the model learnt responses, or else how the text goes on.

        Args:
            prompt: Any text; where texts are continued it may be empty.
            max_tokens: Tokens, at most; the model may end sooner.
            temperature: 0 takes the likeliest token each time; 1 draws as the model says; higher is wilder.
            seed: The same one draws the same text.

        Raises InputError where there is nothing to go on from, or a number that makes no sense.
        """
        if max_tokens < 1:
            raise InputError(f"max tokens {max_tokens}: at least 1")
        if not (temperature == 0.0 or _COOLEST <= temperature < float("inf")):
            raise InputError(f"temperature {temperature:g}: 0, or {_COOLEST:g} and more")
        ids = self._asked(prompt, self.answered)
        options: dict[str, Any] = {"do_sample": False}
        if temperature > 0.0:
            options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        with torch.random.fork_rng():
            torch.manual_seed(derived_seed("generate", seed))
            return self._go_on([ids], self._room(ids, max_tokens), options)[0]

    @torch.no_grad()
    def answers(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """The answer to each of `prompts`, the likeliest token each time: what `generate` gives with temperature 0
        where the model learnt responses, up to rounding, but as many at once as training had in a batch.

        Raises InputError where a prompt leaves no room for an answer.
        """
        asked = [self._asked(prompt, answered=True) for prompt in prompts]
        room = [self._room(ids, max_tokens) for ids in asked]
        order = sorted(range(len(asked)), key=lambda i: (room[i], len(asked[i])))
        size = self.recipe.training.batch_size if self._hides_padding(asked) else 1
        found: dict[int, str] = {}
        for most, same in itertools.groupby(order, key=lambda i: room[i]):
            members = list(same)
            for start in range(0, len(members), size):
                batch = members[start : start + size]
                found |= zip(batch, self._go_on([asked[i] for i in batch], most, {"do_sample": False}), strict=True)
        return [found[i] for i in range(len(asked))]

    def _asked(self, prompt: str, answered: bool) -> list[int]:
        """A prompt as tokens. Raises InputError where there is none."""
        ids = self.tokenizer.prompt(prompt, answered)
        if not ids:
            raise InputError("the prompt is empty, and this model's tokenizer has no token to begin with")
        return ids

    def _room(self, ids: Sequence[int], max_tokens: int) -> int:
        """Tokens that may follow `ids`, `max_tokens` at most. Raises InputError where none may."""
        room = getattr(self._config, "max_position_embeddings", None)
        if room is None:
            return max_tokens
        if len(ids) >= room:
            raise InputError(f"the prompt has {len(ids)} tokens; the model sees {room} at most")
        return min(max_tokens, int(room) - len(ids))

    def _go_on(self, prompts: Sequence[Sequence[int]], most: int, options: Mapping[str, Any]) -> list[str]:
        """The text that follows each of `prompts`, tokens, by up to `most` tokens.

        Shorter prompts are padded on the left, where the mask hides it and positions do not count it.
        """
        made, length = self._made(prompts, max_new_tokens=most, **options), max(len(ids) for ids in prompts)
        return [self.tokenizer.decode(self._until_end(row)) for row in made[:, length:].tolist()]

    def _made(self, prompts: Sequence[Sequence[int]], hidden: bool = True, **options: Any) -> Any:
        """What the model's `generate` gives for `prompts`, their padding `hidden` by the mask or not."""
        device = next(self.model.parameters()).device
        length = max(len(ids) for ids in prompts)
        input_ids = torch.tensor([[self.tokenizer.pad] * (length - len(ids)) + list(ids) for ids in prompts])
        mask = torch.tensor([[int(not hidden)] * (length - len(ids)) + [1] * len(ids) for ids in prompts])
        return self.model.generate(  # type: ignore[operator]  # every causal model of transformers has it
            input_ids=input_ids.to(device),
            attention_mask=mask.to(device),
            pad_token_id=self.tokenizer.pad,
            eos_token_id=self.tokenizer.end,
            **options,
        )

    def _hides_padding(self, prompts: Sequence[Sequence[int]]) -> bool:
        """Whether the model sees the shortest of `prompts` beside the longest as it sees it alone. Not all do: the
        recurrent RWKV takes no mask."""
        shortest, longest = min(prompts, key=len), max(prompts, key=len)
        if len(shortest) == len(longest):
            return True
        options: dict[str, Any] = {"max_new_tokens": 1, "do_sample": False, "output_logits": True}
        options["return_dict_in_generate"] = True
        alone = self._made([shortest], **options).logits[0][0].float()
        beside, seen = (
            self._made([shortest, longest], hidden=hidden, **options).logits[0][0].float() for hidden in (True, False)
        )
        # Against what sight of the padding changes, for 16-bit models are not exact.
        return float((beside - alone).abs().max()) < 0.05 * float((seen - alone).abs().max()) + 1e-5

    def _until_end(self, ids: list[int]) -> list[int]:
        """Without the padding behind an answer that ended before others of its batch."""
        end = self.tokenizer.end
        return ids if end is None or end not in ids else ids[: ids.index(end)]

    @property
    def _config(self) -> Any:
        return self.model.config

    def merged(self) -> nn.Module:
        """The model with its adapters, if it has some, added to the weights: one that needs no peft."""
        if not self.recipe.model.adapted:
            return self.model
        if self.recipe.model.trains == "qlora":
            raise InputError("4-bit weights can't take adapters in; merge them into the base in full precision")
        merged: nn.Module = self.model.merge_and_unload()  # type: ignore[operator]  # of a PeftModel
        return merged


def _on_its_base(trained: TrainedModel) -> tuple[nn.Module, TextTokenizer]:
    """The base that a checkpoint's adapters or layers belong to, ready to take them."""
    settings = trained.recipe.model
    model = models.prepare(models.load_base(settings, torch.device("cpu")), settings)
    tokenizer = TextTokenizer.load(settings.name)
    if models.base_fingerprint(model) != trained.inference_metadata["base"]:
        raise CheckpointError(f"{trained.path}: belongs to other weights than {settings.name} has now")
    if tokenizer.fingerprint != trained.inference_metadata["fingerprint"]:
        raise CheckpointError(f"{trained.path}: belongs to another tokenizer than {settings.name} has now")
    return model, tokenizer
