"""The vocoder of a session's voice: the recipe's, a run, or one that is trained first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phonate.audio.processor import AudioProcessor
from phonate.config.resolve import Resolved
from phonate.rendering.renderer import vocoder_conflict
from phonate.training.checkpoints import best_or_latest
from phonate.workflows.session.work import VOCODER, Work

_AUTO = "auto"


@dataclass(frozen=True)
class _Choice:
    """What `data.vocoder` is to be."""

    run: str | None
    """Its value."""
    recipe: str | None = None
    """The recipe by which it is trained first, if it is."""


def checked(work: Work, resolved: Resolved) -> Resolved:
    """The recipe with its vocoder, if it need not be trained. Raises InputError where it has no intact checkpoint."""
    choice = _choice(work, resolved)
    if choice.run is not None:
        best_or_latest(choice.run)
    return _with(work, resolved, choice.run)


def with_vocoder(work: Work, resolved: Resolved) -> Resolved:
    """The recipe with its vocoder, which is trained now if there is none."""
    choice = _choice(work, resolved)
    if choice.recipe is None:
        return _with(work, resolved, choice.run)
    work.log.info(f"Training a vocoder first, on {work.device}")
    run = work.train(work.config.vocoder_recipe(choice.recipe, {"data.path": resolved.recipe.data.path}), VOCODER)
    return _with(work, resolved, str(run.resolve()))


def _choice(work: Work, resolved: Resolved) -> _Choice:
    """As `session.vocoder` says, unless the configuration itself has a `data.vocoder`."""
    data, source, config = resolved.recipe.data, work.config.settings.vocoder, work.config
    named = getattr(data, "vocoder", None)
    if not hasattr(data, "vocoder") or config.value("data", "vocoder") is not None:
        return _Choice(named)
    if source is None:
        return _Choice(None)
    if source == _AUTO:
        usable = config.task is not None or (
            named is not None and vocoder_conflict(named, AudioProcessor(data.audio)) is None
        )
        return _Choice(named) if usable else _Choice(None, _AUTO)
    return _Choice(str(Path(source).resolve())) if Path(source).is_dir() else _Choice(None, source)


def _with(work: Work, resolved: Resolved, vocoder: str | None) -> Resolved:
    """The recipe with `data.vocoder`."""
    data, task = resolved.recipe.data, resolved.recipe.task
    if getattr(data, "vocoder", None) == vocoder:
        return resolved
    overrides = {"data.path": data.path, "data.vocoder": vocoder, **work.config.language_overrides(task)}
    return work.config.recipe(task, overrides)
