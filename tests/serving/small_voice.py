"""A run of the task speech that is trained within seconds: two voices of espeak-ng, hardly intelligible."""

from __future__ import annotations

import shutil
from pathlib import Path

from phonate.workflows.demo import embedded
from phonate.workflows.train import train

SENTENCES = 4


def small_run(folder: Path) -> None:
    """Train it in `folder`, as `small`. Needs espeak-ng and pocketsphinx."""
    speakers = embedded.SPEAKERS[:2]
    made = embedded.make_corpus(folder / "made", speakers, SENTENCES)
    rows = []
    for speaker in speakers:
        shutil.copytree(made.folder / speaker.name, folder / "voice" / "wavs" / speaker.name)
        rows += [
            f"{speaker.name}/{number:02d}|{speaker.name}|{text}"
            for number, text in enumerate(embedded.SENTENCES[:SENTENCES])
        ]
    (folder / "voice" / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    changes = {
        "data.path": str(folder / "voice"),
        "data.cache_dir": str(folder / "cache"),
        "data.validation": 0.25,
        "data.judged": 0,
        "model.width": 48,
        "model.encoder_layers": 2,
        "model.decoder_layers": 2,
        "model.predictor_layers": 1,
        "training.adversarial_start": None,
        "training.batch_size": 4,
        "training.max_steps": 40,
        "training.optimizer.lr": 3e-3,
        "training.scheduler.warmup_steps": 2,
        "training.logging.tensorboard": False,
        "training.validation.interval": 40,
        "training.validation.previews": False,
        "training.validation.metric_for_best_model": "val_loss",
        "training.validation.greater_is_better": False,
        "training.checkpoint.interval": 40,
        "training.ema": None,
    }
    train("speech", changes, output=folder / "small")
