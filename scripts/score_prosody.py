"""Scores what the rules of prosody do to a voice: how questions end, how long silences are, WER and MOS.

    python scripts/score_prosody.py base/voice

English sentences of our own, with and without rules. `end`: pitch of the last 200 ms of voice relative to the
sentence's mean, in semitones (both means of log F0); `rising`: sentences in which it is over 0. Silences: the longest
run below -40 dB around a mark (from the beginning of the word in front of it to the end of the one behind it), mean,
shortest and longest of 12 pairs of clauses, in milliseconds.
"""

from __future__ import annotations

import re
import sys

import numpy as np

import phonate
from phonate.audio.pitch import f0
from phonate.evaluation.words import count_word_errors
from phonate.pretrained import MosPredictor, Transcriber
from phonate.tasks.speech.inference import Synthesiser

LAST_SECONDS = 0.2
SILENT_DB = -40.0
STEP = 0.005
QUESTIONS = {
    "yes/no questions": (
        "Are you coming? Do you like the garden? Is it raining? Did he find the key? Will you help me with the boat? "
        "Can we go now? Have they finished the letter? Was the teacher angry? Is this your brother? "
        "Do you remember the old farmer? Does she live near the river? Should we wait for them? Are the windows open? "
        "Has the train arrived? Could you close the door? Would you like some water? Did the children sleep well? "
        "Is there any bread left? Were you at the meeting yesterday? Can anybody see the island? May I borrow it? "
        "Do they know the answer? Is dinner ready? Have you ever been to London? Are we allowed to stay here? "
        "Did you hear what I said? Will the museum be open on Sunday? Has nobody told you? Must I read all of it? "
        "Isn't it wonderful?"
    ),
    "wh-questions": (
        "Where are you going? What did he find in the garden? Who opened the window? Why is the teacher angry? "
        "When does the train arrive? How did you get here? Which road leads to the river? Whose umbrella is this? "
        "What time is it? How long have you been waiting? Why didn't you call me? Where do the children sleep? "
        "Who told you the answer? When will dinner be ready? How many people live on the island? What is your name? "
        "In which house were you born? To whom did she give the letter? Why are all the windows open? "
        "What would you like to drink? How far is it to the station? Which of them is your brother? "
        "Where did they put the money? Who is responsible for this? What happened to the boat? How can we help them? "
        "When was the museum built? And why should I believe you? For how long will they stay? What does it mean?"
    ),
    "statements": (
        "You are coming with us. I like the garden. It is raining. He found the key. She will help me with the boat. "
        "We can go now. They have finished the letter. The teacher was angry. This is my brother. "
        "I remember the old farmer. She lives near the river. We should wait for them. The windows are open. "
        "The train has arrived. He closed the door. I would like some water. The children slept well. "
        "There is no bread left. We were at the meeting yesterday. Nobody can see the island. You may borrow it. "
        "They know the answer. Dinner is ready. I have never been to London. We are allowed to stay here. "
        "He heard what I said. The museum is open on Sunday. Nobody told me. I must read all of it. It is wonderful."
    ),
}
CLAUSES = (
    ("The baker sold a yellow boat", "nobody knew why"),
    ("We waited at the station", "the train was late"),
    ("She opened the letter", "it was empty"),
    ("He walked to the river", "the water was cold"),
    ("The old man closed his eyes", "he was very tired"),
    ("They bought the house", "it was cheap enough"),
    ("Nobody saw the thief", "the street was dark"),
    ("You may keep the money", "we have plenty"),
    ("The doctor came at noon", "the fever was gone"),
    ("I like the garden", "the roses are in bloom"),
    ("The children went home", "school was over"),
    ("The captain gave the order", "the ship turned south"),
)
BETWEEN = {
    "comma": (", ", "."),
    "semicolon": ("; ", "."),
    "colon": (": ", "."),
    "dash": (" - ", "."),
    "parenthesis": (" (", ")."),
    "ellipsis": ("... ", "."),
    "full stop": (". ", "."),
    "paragraph": (".\n\n", "."),
}


CAPITAL = (". ", ".\n\n")


def sentences(text: str) -> list[str]:
    """The sentences of one of the texts above."""
    return [one.strip() for one in re.findall(r"[^.?]+[.?]", text)]


def ending(sound: np.ndarray, rate: int) -> float:
    """Semitones of the end above the mean."""
    track = f0(sound, rate, rate // 200)
    voiced = np.flatnonzero(track > 0)
    last = voiced[voiced > voiced[-1] - LAST_SECONDS * 200]
    return float(12 * (np.log2(track[last]).mean() - np.log2(track[voiced]).mean()))


def silence(voice: Synthesiser, text: str, words: int) -> float:
    """Milliseconds of silence after so many words."""
    sound, times = voice.timed(text)
    step = round(STEP * voice.sample_rate)
    frames = np.lib.stride_tricks.sliding_window_view(sound, 2 * step)[::step]
    powers = np.square(frames.astype(np.float64)).mean(axis=1) + 1e-12
    silent = 10 * np.log10(powers / powers.max()) < SILENT_DB
    longest = run = 0
    for one in silent[int(times[words - 1].start / STEP) : int(times[words].end / STEP)]:
        run = run + 1 if one else 0
        longest = max(longest, run)
    return 1000 * longest * STEP


def main() -> None:
    """Print both tables."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    voice, recogniser, naturalness = phonate.load(sys.argv[1], "speech"), Transcriber(), MosPredictor()
    rate = voice.sample_rate
    for kind, text in QUESTIONS.items():
        for voice.prosody_rules in (False, True):
            texts = sentences(text)
            sounds = voice.speak(texts)
            ends = np.array([ending(one, rate) for one in sounds])
            errors = count_word_errors(texts, [recogniser.transcribe(one, rate) for one in sounds])
            mos = np.mean([naturalness.score_synthesised(one, rate, kind) for one in sounds])
            print(
                f"{len(texts)} {kind}, {'with' if voice.prosody_rules else 'without'} rules: end {ends.mean():+.1f} "
                f"(sd {ends.std():.1f}), rising {(ends > 0).sum()}, WER {errors.rate:.1%}, MOS {mos:.2f}",
                flush=True,
            )
    for name, (between, end) in BETWEEN.items():
        shown = []
        for voice.prosody_rules in (False, True):
            found = [
                silence(
                    voice, f"{one}{between}{two.capitalize() if between in CAPITAL else two}{end}", len(one.split())
                )
                for one, two in CLAUSES
            ]
            shown.append(f"{np.mean(found):.0f} ({min(found):.0f} to {max(found):.0f})")
        print(f"{name}: {shown[0]} ms without rules, {shown[1]} ms with them", flush=True)


if __name__ == "__main__":
    main()
