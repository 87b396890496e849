"""Trained models on the Hugging Face Hub: pushed with a model card, and loaded by name (`hf:OWNER/NAME`)."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from phonate.compute.remote import hub_is_out_of_reach, hub_network_errors
from phonate.config.errors import InputError, optional_package
from phonate.config.tasks import referred, task_info
from phonate.evaluation.tables import markdown
from phonate.rendering import BESIDE, GRIFFIN_LIM, saved_beside
from phonate.training.checkpoints import files, listing
from phonate.training.checkpoints.listing import BASE_VOCODER, best_or_latest, hub_name
from phonate.training.checkpoints.loading import recipe_of, sources_of, sources_of_start
from phonate.workflows.pages.report import evaluation, read_json

CARD = "README.md"
_SPEAKING = ("text-to-speech", "audio-to-audio")
_NOTICE = (
    "What this model says is AI-generated: tell those who hear it, and do not imitate a person without their consent."
)


def push(
    source: str | Path, name: str, *, private: bool = False, licence: str | None = None, base: str | None = None
) -> str:
    """Push what inference needs of a run's best checkpoint, or of one checkpoint, to the hub; returns its address.

    The model's page says what it was trained on and how well it does, as far as the run knows. A vocoder of yours goes
    along.

    Args:
        name: hf:OWNER/NAME. The model is created where it is not there.
        private: Whether only you may see a model that is created.
        licence: The licence of the model as the hub abbreviates it, such as cc-by-4.0.
        base: The model on the hub that it was adapted from.

    Raises InputError where the hub refuses it.
    """
    hub: Any = optional_package("huggingface_hub", "a model on the hub", "'phonate[hub]'")
    errors: Any = optional_package("huggingface_hub.errors", "a model on the hub", "'phonate[hub]'")
    repository, revision = hub_name(name)
    if revision is not None:
        raise InputError(f"{name}: a model is pushed to its newest revision; leave out @{revision}")
    checkpoint = best_or_latest(source)
    if why := hub_is_out_of_reach():
        raise InputError(f"{name}: can't be pushed: {why}")
    with tempfile.TemporaryDirectory(prefix="phonate-push-") as temporary:
        folder = listing.export(checkpoint, Path(temporary) / "model")
        _add_vocoder(checkpoint, folder)
        (folder / CARD).write_text(model_card(checkpoint, repository, licence, base), encoding="utf-8")
        api = hub.HfApi()
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message=f"Model by phonate: {repository}")
        except errors.LocalTokenNotFoundError:
            raise InputError(f"{name}: the hub wants to know who pushes; set HF_TOKEN, or run hf auth login") from None
        except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, *hub_network_errors()) as error:
            raise InputError(f"{name}: can't be pushed ({' '.join(str(error).split())})") from error
    return f"{api.endpoint}/{repository}"


def _add_vocoder(checkpoint: Path, folder: Path) -> None:
    """Copy the vocoder of the model to where a loaded model looks for it first."""
    if (beside := saved_beside(checkpoint)) is not None:
        listing.export(beside, folder / BESIDE)
        return
    vocoder = getattr(recipe_of(checkpoint).data, "vocoder", None)
    if vocoder not in (None, GRIFFIN_LIM, BASE_VOCODER):
        listing.export(best_or_latest(str(vocoder)), folder / BESIDE)


# ---------------------------------------------------------------------------------------- Model cards


def model_card(checkpoint: Path, repository: str, licence: str | None = None, base: str | None = None) -> str:
    """The text of a model's page: front matter for the hub, use, training data, figures, limits."""
    recipe = recipe_of(checkpoint)
    info = task_info(recipe.task)
    language = getattr(recipe.data, "language", None)
    front = {
        "library_name": "phonate",
        "pipeline_tag": info.hub_task,
        "license": licence,
        "language": language,
        "base_model": base,
        "tags": ["phonate", recipe.task],
    }
    metadata = read_json(checkpoint / files.METADATA)
    inference = read_json(checkpoint / files.INFERENCE)
    own = dict(referred(info.facts)(inference)) if info.facts is not None else {}
    facts = {"task": recipe.task, **own, "steps": metadata["global_step"], "parameters": metadata["num_parameters"]}
    vocoder = sources_of(getattr(recipe.data, "vocoder", None), "the vocoder")
    facts |= {**sources_of(checkpoint), **sources_of_start(checkpoint), **vocoder}
    lines = [f"{key}: {json.dumps(value)}" for key, value in front.items() if value is not None]
    sections = [
        "\n".join(["---", *lines, "---"]),
        f"# {repository.partition('/')[2]}",
        f"Trained with phonate. {_NOTICE}" if info.hub_task in _SPEAKING else "Trained with phonate.",
        f'## Use\n\n```python\nimport phonate\n\nmodel = phonate.load("hf:{repository}", "{recipe.task}")\n```\n\n'
        f"`phonate --help` lists the commands, which take `hf:{repository}` for a run.",
        "## Training\n\n" + markdown(("", ""), [(name, str(value)) for name, value in facts.items()]),
        "## Figures\n\n" + _figures(checkpoint),
    ]
    return "\n\n".join(sections) + "\n"


def _figures(checkpoint: Path) -> str:
    for folder in (checkpoint, *checkpoint.resolve().parents[:2]):
        for table in evaluation(folder / files.FIGURES):
            header = ["", *(column["heading"] for column in table["columns"])]
            return markdown(header, [(row["name"], *row["cells"]) for row in table["rows"]]) + f"\n\n{table['note']}"
    return "Not evaluated: `phonate evaluate` before the push adds a table."
