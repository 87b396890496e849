"""A voice to learn to speak with, made on the spot: one synthetic speaker who reads sentences put together by chance.

For trying text-to-speech out where there are no recordings. The sentences are new combinations of a few hundred words,
so that a model can learn to say ones that it never heard in minutes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from phonate.workflows.demo.embedded_corpus import Speaker, say

SPEAKER = Speaker("ed", "en-us", 50, 130)
"""The clearest of espeak-ng's voices: a recogniser gets four words in five of these odd sentences."""

_WHO = (
    "the baker|my sister|the old captain|a young doctor|the quiet teacher|our neighbour|the mayor|two brothers|"
    "the gardener|her uncle|the painter|a small boy|the tall woman|the farmer|their guide|the pilot|a tired judge|"
    "the singer|his cousin|the lawyer|three sailors|the cook|your friend|the builder"
)
_DID = (
    "found|carried|painted|counted|forgot|borrowed|repaired|sold|noticed|dropped|washed|measured|opened|followed|"
    "described|collected|covered|pushed|moved|chose|bought|hid|lifted|drew"
)
_WHAT = (
    "a yellow boat|the broken clock|nine heavy boxes|the garden gate|a bag of oranges|the red bicycle|some fresh bread|"
    "an empty bottle|the church bell|a wooden ladder|the northern road|twelve silver coins|a long letter|"
    "the blue chair|every window|a pair of gloves|the kitchen table|seven small fish|the village map|an unusual stone|"
    "the evening paper|a jar of honey|the iron key|their winter coats"
)
_WHERE = (
    "near the river|behind the school|in the cellar|under the bridge|at the station|on the hill|beside the well|"
    "across the valley|by the harbour|inside the tower|along the shore|outside the theatre|between two houses|"
    "above the shop|in front of the museum|next to the orchard"
)
_WHEN = (
    "this morning|before sunrise|after lunch|on Thursday|last winter|without a word|at noon|in the rain|"
    "with great care|every spring|for the first time|as usual|during the storm|"
    "just in time|twice a week|late in the evening"
)
_FRAMES = (
    "{who} {did} {what} {where}.",
    "{when}, {who} {did} {what}.",
    "{who} {did} {what} {when}.",
    "{who} {did} {what} {where} {when}.",
    "Was it {who} who {did} {what}?",
    "{who} {did} {what}, and {who2} {did2} {what2}.",
)


@dataclass(frozen=True)
class EmbeddedVoice:
    """Where the recordings lie, and what the speaker never says in them."""

    folder: Path
    """LJSpeech's layout: wavs/ and metadata.csv."""
    unseen: tuple[str, ...]
    """Sentences of the same words."""


def sentences(count: int, seed: int = 0) -> list[str]:
    """So many different sentences; a longer list begins with a shorter one of the same seed."""
    rng = random.Random(seed)
    made: dict[str, None] = {}
    while len(made) < count:
        text = rng.choice(_FRAMES).format(
            **{
                name + again: rng.choice(choices.split("|"))
                for again in ("", "2")
                for name, choices in (("who", _WHO), ("did", _DID), ("what", _WHAT), ("where", _WHERE), ("when", _WHEN))
            }
        )
        made[text[0].upper() + text[1:]] = None
    return list(made)


def make(folder: Path, count: int = 500, unseen: int = 40, speaker: Speaker = SPEAKER) -> EmbeddedVoice:
    """Write `folder/wavs/<nnnn>.wav`, 22,050 Hz, mono, each with a TextGrid of its phones beside it, and
    `folder/metadata.csv` (`id|text`).

    The same call writes the same bytes. Raises MissingPackageError without espeakng-loader.
    """
    texts = sentences(count + unseen)
    spoken = {f"{number:04d}": text for number, text in enumerate(texts[:count])}
    say([(folder / "wavs" / f"{name}.wav", text, speaker) for name, text in spoken.items()], alignments=True)
    rows = "".join(f"{name}|{text}\n" for name, text in spoken.items())
    (folder / "metadata.csv").write_text(rows, encoding="utf-8")
    return EmbeddedVoice(folder, tuple(texts[count:]))
