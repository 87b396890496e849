"""Texts -> a language model: check the configuration, load, train, save."""

from __future__ import annotations

from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.dialogues.reading import SUFFIXES, text_files
from phonate.workflows.plan import Plan
from phonate.workflows.session.demonstration import sample
from phonate.workflows.session.tasks import default_recipe
from phonate.workflows.session.work import MODEL, Work

SAMPLES = Path("datasets/samples")
SAVED = "text_model"


def train_text(work: Work) -> Path:
    """The whole flow; returns the model's folder.

    Raises RecipeError for mistakes in the configuration, DataError where there is no text, MissingPackageError
    without transformers.
    """
    log = work.log
    log.info("Starting text training")
    plan = _plan(work)
    written = plan.written
    log.success(f"Configuration: {written.document.name if work.config.exists else 'the recipe ' + written.name}")
    log.info(f"Training on the texts in {plan.recipe.data.path}, on {work.device}")
    work.train(plan, MODEL)
    made = work.export(SAVED)
    shown = sample(made, work.output / SAVED)
    model = work.keep(made)
    log.success(f"Text model saved to: {model}")
    if shown is not None:
        log.success(shown)
    return model


def _plan(work: Work) -> Plan:
    """The plan: a new model, or adapters where the configuration names a pretrained one."""
    config = work.config
    name = default_recipe("texts", pretrained=config.value("model", "name") is not None)
    overrides = {} if config.value("data", "path") is not None else {"data.path": str(_texts(work))}
    return config.plan(name, overrides)


def _texts(work: Work) -> Path:
    """The folder of texts where the configuration names none."""
    places = (work.voice_data_dir, SAMPLES)
    for folder in places:
        if folder.is_dir() and _has_texts(folder):
            return folder
    raise DataError(
        f"No texts found in: {' or '.join(map(str, places))}; put {', '.join(SUFFIXES)} files there, or set "
        f"data.path in {work.config.document.name}; recordings go into {work.voice_data_dir}"
    )


def _has_texts(folder: Path) -> bool:
    try:
        return bool(text_files(folder))
    except DataError:
        return False
