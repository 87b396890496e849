"""From a trained run to text."""

from __future__ import annotations

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
            model = models.from_config(trained.facts["config"])
            tokenizer = TextTokenizer.read(trained.facts["tokenizer"])
        else:
            model, tokenizer = _on_its_base(trained)
        models.put_back(models.trained_tensors(model, everything=settings.trains == "full"), trained.weights)
        return cls(model, tokenizer, bool(trained.facts["answered"]), trained.recipe)

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
        ids = self.tokenizer.prompt(prompt, self.answered)
        if not ids:
            raise InputError("the prompt is empty, and this model's tokenizer has no token to begin with")
        room = getattr(self._config, "max_position_embeddings", None)
        if room is not None and len(ids) >= room:
            raise InputError(f"the prompt has {len(ids)} tokens; the model sees {room} at most")
        most = max_tokens if room is None else min(max_tokens, room - len(ids))
        device = next(self.model.parameters()).device
        input_ids = torch.tensor([ids], device=device)
        options: dict[str, Any] = {"do_sample": False}
        if temperature > 0.0:
            options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        with torch.random.fork_rng():
            torch.manual_seed(derived_seed("generate", seed))
            made = self.model.generate(  # type: ignore[operator]  # every causal model of transformers has it
                input_ids=input_ids,
                attention_mask=torch.ones_like(input_ids),
                max_new_tokens=most,
                pad_token_id=self.tokenizer.pad,
                eos_token_id=self.tokenizer.end,
                **options,
            )
        return self.tokenizer.decode(made[0, len(ids) :].tolist())

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
    model = models.prepare(models.load_base(settings), settings)
    tokenizer = TextTokenizer.load(settings.name)
    if models.base_fingerprint(model) != trained.facts["base"]:
        raise CheckpointError(f"{trained.path}: belongs to other weights than {settings.name} has now")
    if tokenizer.fingerprint != trained.facts["fingerprint"]:
        raise CheckpointError(f"{trained.path}: belongs to another tokenizer than {settings.name} has now")
    return model, tokenizer
