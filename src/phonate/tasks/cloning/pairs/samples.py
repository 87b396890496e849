"""Dialogues -> samples: a reference, and a text that is spoken in the reference's voice.

Rows of two shapes are understood, in ChatML (see `phonate.data.dialogues.rows`):

    user: [transcript of the reference, reference, text to speak]    assistant: [text, speech]
    user: transcript    assistant: reference    user: text to speak    assistant: speech

The transcript may be missing, and so may one of the two copies of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from phonate.config.errors import DataError
from phonate.data.dialogues.dialogue import Audio, Dialogue, Text, Turn

INSTRUCTION = "Please generate speech for given text in reference audio's voice:"
"""What may stand before the text to speak. It is left out: the model was not trained with it."""
_INSTRUCTION = re.compile(
    r"\s*please\s+generate\s+speech\s+for\s+(?:the\s+)?given\s+text\s+in\s+(?:the\s+)?reference\s+audio['’]?s\s+voice\s*:",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CloningSample:
    """A reference with its transcript, and a text with its recording in the same voice."""

    id: str
    """Where it was read: file:line, or file:row of a .json file."""
    speaker: str | None
    system: str | None
    """The system message; None: there is none."""
    reference_text: str | None
    """What the reference says; None: unknown."""
    reference: Audio
    target_text: str
    """What the target says."""
    target: Audio
    prompted_text: str | None = None
    """The text that the prompt asks for, where it is not what the target says."""


def cloning_sample(dialogue: Dialogue) -> CloningSample:
    """The sample in a dialogue, of which the last turn that is learnt is the target.

    What is learnt as spoken is the assistant's text, where it has one, otherwise the text that the prompt asks for.

    Raises DataError, with what to write, for a dialogue without a reference, a target or a text, or with more of them.
    """
    if dialogue.is_plain:
        raise DataError(f"{dialogue.id}: a plain text; write a user's message with a reference and an assistant's")
    response, prompt = dialogue.response, [turn for turn in dialogue.prompt if turn.role != "system"]
    target = _only([part for part in response.parts if isinstance(part, Audio)], dialogue.id, "assistant's message")
    reference = _only([audio for turn in prompt for audio in turn.audio], dialogue.id, "messages before it")
    transcript, asked = _texts(prompt, reference, bool(response.text), dialogue.id)
    spoken = _joined(response.text) or asked
    if spoken is None:
        raise DataError(f"{dialogue.id}: no text to speak; add a text part behind the reference, or to the assistant's")
    system = " ".join(turn.text for turn in dialogue.prompt if turn.role == "system")
    return CloningSample(
        id=dialogue.id,
        speaker=dialogue.speaker,
        system=system or None,
        reference_text=transcript,
        reference=reference,
        target_text=spoken,
        target=target,
        prompted_text=asked if asked not in (None, spoken) else None,
    )


def _only(found: Sequence[Audio], id: str, where: str) -> Audio:
    if len(found) != 1:
        many = f"{len(found)} recordings" if found else "no recording"
        raise DataError(f'{id}: {many} in the {where}; one {{"type": "audio", "audio_url": FILE}} is expected')
    return found[0]


def _texts(prompt: Sequence[Turn], reference: Audio, spoken_known: bool, id: str) -> tuple[str | None, str | None]:
    """The reference's transcript and the text that is asked for; None for one that is not there.

    The text asked for is the one behind the instruction, otherwise the last one. A text that stands alone is the
    transcript if it comes before the reference and the assistant's message says what is spoken.
    """
    parts = [(part, turn.role) for turn in prompt for part in turn.parts]
    at = next(index for index, (part, _) in enumerate(parts) if part is reference)
    own = [part.text for part, role in parts if isinstance(part, Text) and role == "assistant"]
    texts = [
        (index, part.text) for index, (part, role) in enumerate(parts) if isinstance(part, Text) and role == "user"
    ]
    instructed = [entry for entry in texts if _INSTRUCTION.match(entry[1])]
    asked = instructed[-1] if instructed else texts[-1] if texts else None
    if asked and not instructed and asked[0] < at and (len(texts) > 1 or spoken_known or own):
        asked = None
    others = [text for entry in texts if entry is not asked and (text := _joined(entry[1]))]
    transcripts = list(dict.fromkeys([*map(_joined, own), *others]))
    if len(transcripts) > 1:
        raise DataError(
            f"{id}: {len(transcripts)} texts beside the one to speak; one, the transcript of the reference, is expected"
        )
    wanted = _joined(_INSTRUCTION.sub("", asked[1], count=1)) if asked else ""
    return (transcripts[0] or None if transcripts else None), wanted or None


def _joined(text: str) -> str:
    """The text with single spaces."""
    return " ".join(text.split())
