"""The vocoder of a session's voice: the recipe's, a run, or one that is trained first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phonate.audio.processor import AudioProcessor
from phonate.rendering.renderer import vocoder_conflict
from phonate.training.checkpoints import best_or_latest
from phonate.workflows.plan import Plan
from phonate.workflows.session.work import VOCODER, Work

_AUTO = "auto"


@dataclass(frozen=True)
class _Choice:
    """What `data.vocoder` is to be."""

    run: str | None
    """Its value."""
    recipe: str | None = None
    """The recipe by which it is trained first, if it is."""


def checked(work: Work, plan: Plan) -> Plan:
    """The plan with its vocoder, if it need not be trained. Raises InputError where it has no intact checkpoint."""
    choice = _choice(work, plan)
    if choice.run is not None:
        best_or_latest(choice.run)
    return _with(plan, choice.run)


def with_vocoder(work: Work, plan: Plan) -> Plan:
    """The plan with its vocoder, which is trained now if there is none."""
    choice = _choice(work, plan)
    if choice.recipe is None:
        return _with(plan, choice.run)
    work.log.info(f"Training a vocoder first, on {work.device}")
    own = work.config.vocoder_plan(choice.recipe, {"data.path": plan.written.recipe.data.path})
    run = work.train(own, VOCODER)
    return _with(plan, str(run.resolve()))


def _choice(work: Work, plan: Plan) -> _Choice:
    """As `session.vocoder` says, unless the configuration itself has a `data.vocoder`."""
    data, source, config = plan.written.recipe.data, work.config.settings.vocoder, work.config
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


def _with(plan: Plan, vocoder: str | None) -> Plan:
    """The plan with `data.vocoder`."""
    if getattr(plan.written.recipe.data, "vocoder", None) == vocoder:
        return plan
    return plan.but({"data.vocoder": vocoder})
