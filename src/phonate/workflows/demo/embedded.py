"""Corpora of synthetic speech, made on the spot by espeak-ng, where there are no recordings.

For trying things out where there are no recordings: formant synthesis, intelligible and never natural. The
library comes in the wheel of the optional package espeakng-loader and is loaded at run time; its state is
global, so it runs in a process of its own.

For trying text-to-speech out where there are no recordings. The sentences are new combinations of a few hundred words,
so that a model can learn to say ones that it never heard in minutes.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import InputError, PhonateError, require_modules
from phonate.data.label_documents import Tier, write_tiers

# --------------------------------- When each word and each phone begins in speech that espeak-ng makes

PHONEME_EVENTS = 0x0001 | 0x0002
"""espeakINITIALIZE_PHONEME_EVENTS and espeakINITIALIZE_PHONEME_IPA of speak_lib.h."""
_END_OF_LIST, _WORD, _PHONEME = 0, 1, 7  # espeak_EVENT_TYPE
_LONGEST_NAME = 8  # bytes; the library cuts what is longer


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * _LONGEST_NAME))


class EventStruct(ctypes.Structure):
    """espeak_EVENT of speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


@dataclass(frozen=True)
class Event:
    """A word (its `label` is the text) or a phone (IPA; "" is a pause) that begins at `sample`."""

    is_word: bool
    sample: int
    label: str


def read_events(events: ctypes._Pointer[EventStruct], text: str) -> list[Event]:
    """The words and phones of one call of the synthesis callback while `text` is spoken."""
    words_and_phones: list[Event] = []
    number = 0
    while events and events[number].type != _END_OF_LIST:
        event = events[number]
        if event.type == _WORD:
            start = event.text_position - 1  # counted from 1, in characters
            words_and_phones.append(Event(True, event.sample, text[start : start + event.length]))
        elif event.type == _PHONEME:
            name = ctypes.string_at(ctypes.addressof(event.id), _LONGEST_NAME).split(b"\0")[0]
            try:
                words_and_phones.append(Event(False, event.sample, name.decode()))
            except UnicodeDecodeError as error:
                raise PhonateError(f"espeak-ng cut the name of a phone in {text!r}: {name!r}") from error
        number += 1
    return words_and_phones


def write_textgrid(path: Path, events: Sequence[Event], samples: int, sample_rate: int) -> None:
    """Write the tiers `words` and `phones` for Praat. Phones tile the whole recording, pauses being empty; a word
    lasts from its first phone to the end of its last."""
    phones = [event for event in events if not event.is_word]
    tiled = [(0, phones[0].sample, ""), *_until_the_next(phones, samples)]
    words = []
    for start, end, label in _until_the_next([event for event in events if event.is_word], samples):
        spoken = [(begin, stop) for begin, stop, phone in tiled if phone and start <= begin < end]
        if spoken and label:
            words.append((spoken[0][0], spoken[-1][1], label))
    tiers = [
        Tier(name, [(start / sample_rate, end / sample_rate, label) for start, end, label in spans if start < end])
        for name, spans in (("words", words), ("phones", tiled))
    ]
    write_tiers(path, tiers, samples / sample_rate)


def _until_the_next(events: Sequence[Event], samples: int) -> list[tuple[int, int, str]]:
    """(first sample, end, label) of each event, which lasts until the next begins."""
    ends = [*(event.sample for event in events[1:]), samples]
    return [(event.sample, end, event.label) for event, end in zip(events, ends, strict=True)]


# ------------------------------------------------ A small corpus of English speech by several speakers


@dataclass(frozen=True)
class Speaker:
    """A synthetic speaker: an espeak-ng voice with a variant, pitch (0-100, 50 is usual) and words a minute."""

    name: str
    voice: str
    pitch: int
    rate: int


SPEAKERS = (
    Speaker("ada", "en-us+f2", 58, 165),
    Speaker("bert", "en+m3", 36, 155),
    Speaker("clara", "en+f4", 46, 175),
    Speaker("dan", "en-us+m7", 44, 170),
    Speaker("elsie", "en-gb-scotland+f3", 66, 150),
    Speaker("frank", "en-us+m1", 24, 160),
)
"""Three women and three men of three accents."""

GUEST = Speaker("guest", "en-gb-x-rp+m5", 52, 160)
"""Speaks only sentences that the others never say."""

SENTENCES = (
    "The kettle began to whistle before anyone had found the cups.",
    "A narrow path winds through the orchard and down to the shore.",
    "She measured the window twice and still cut the curtain short.",
    "Thursday's train was late, so we walked along the river instead.",
    "Could you pass me the yellow thread and the smaller scissors?",
    "Five grey geese flew over the church tower at noon.",
    "My uncle keeps bees behind the old joinery workshop.",
    "The judge asked the witness to speak a little louder.",
    "Fresh bread, sharp cheese and a jar of plum jam will do.",
    "Nobody noticed the fox until it crossed the frozen pond.",
    "He wrote each number with care and checked the total again.",
    "A voice from the radio promised thunder before the evening.",
    "The youngest child drew a house with seven blue chimneys.",
    "We shook the sand from our shoes and closed the gate.",
    "Which of these keys belongs to the cellar door?",
    "The museum hung the huge painting beside a tiny mirror.",
    "Rough hands can still play gentle music on a cello.",
    "They joined the queue and shared a bag of roasted nuts.",
    "An owl called twice from the beech tree and then was quiet.",
    "Put the heavy books below and the light ones above.",
    "The pilot chose a higher course to avoid the clouds.",
    "Every spring the mayor plants an oak in the market square.",
    "I thought the boat was empty, but a cat sat on the rope.",
    "The baker's oven warms the whole of the upper floor.",
    "Please leave your wet umbrella in the stand by the stairs.",
    "Twelve dusty jars of vinegar stood on the lowest shelf.",
    "He joked that the map was drawn by someone fond of circles.",
    "The river froze so hard that carts could cross it safely.",
    "Her brother fixes clocks, and his are always a minute fast.",
    "A pleasant breeze carried the smell of oranges to the beach.",
)

UNSEEN_SENTENCES = (
    "The lighthouse keeper counted every ship that passed in the night.",
    "Bring the wooden ladder, please, and a bucket of clean water.",
    "Both of my cousins enjoy long journeys by bicycle.",
)
"""Kept out of training."""

_SYNCHRONOUS = 2  # AUDIO_OUTPUT_SYNCHRONOUS of speak_lib.h: samples go to the callback, the call waits
_UTF8 = 1  # espeakCHARS_UTF8
_RATE, _PITCH = 1, 3  # espeakRATE, espeakPITCH
_END_PAUSE = 0x1000  # espeakENDPAUSE

_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(EventStruct))


class _Espeak:
    """The C library, spoken to through ctypes. One a process. `with_phones`: note where each phone begins."""

    def __init__(self, with_phones: bool) -> None:
        import espeakng_loader

        self.events: list[Event] = []
        """Words and phones of what was spoken last."""
        self._text = ""
        self._failure: PhonateError | None = None
        self._pieces: list[NDArray[np.int16]] = []
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        self._library.espeak_Synth.argtypes = [
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_uint,
            ctypes.c_int,
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        data = str(espeakng_loader.get_data_path()).encode()
        self.sample_rate: int = self._library.espeak_Initialize(
            _SYNCHRONOUS, 0, data, PHONEME_EVENTS if with_phones else 0
        )
        if self.sample_rate <= 0:
            raise PhonateError(f"espeak-ng can't be started with the data in {data.decode()}")
        # kept as an attribute: ctypes would free a temporary while the library still calls it
        self._callback = _Callback(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(
        self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: ctypes._Pointer[EventStruct]
    ) -> int:
        try:
            self.events += read_events(events, self._text)
        except PhonateError as error:  # ctypes would swallow it
            self._failure = error
        if samples and count:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).astype(np.int16))
        return 0

    def speak(self, text: str, speaker: Speaker) -> NDArray[np.int16]:
        """`text` in the voice of `speaker`: int16 samples at `sample_rate`."""
        if self._library.espeak_SetVoiceByName(speaker.voice.encode()) != 0:
            raise PhonateError(f"espeak-ng has no voice {speaker.voice!r}")
        self._library.espeak_SetParameter(_RATE, speaker.rate, 0)
        self._library.espeak_SetParameter(_PITCH, speaker.pitch, 0)
        # the breath noise comes from the C library's generator
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        self._pieces.clear()
        self.events, self._text = [], text
        encoded = text.encode() + b"\0"
        if self._library.espeak_Synth(encoded, len(encoded), 0, 1, 0, _UTF8 | _END_PAUSE, None, None) != 0:
            raise PhonateError(f"espeak-ng can't speak {text!r}")
        if self._failure is not None:
            raise self._failure
        return np.concatenate(self._pieces)


Job = tuple[Path, str, Speaker]
"""A file, and who says what in it."""


def _write(jobs: Sequence[Job], alignments: bool) -> None:
    """`say`, in the child process."""
    import soundfile

    espeak = _Espeak(alignments)
    for path, text, speaker in jobs:
        path.parent.mkdir(parents=True, exist_ok=True)
        samples = espeak.speak(text, speaker)
        soundfile.write(path, samples, espeak.sample_rate, subtype="PCM_16")
        if alignments:
            write_textgrid(path.with_suffix(".TextGrid"), espeak.events, len(samples), espeak.sample_rate)


def say(jobs: Sequence[Job], alignments: bool = False) -> None:
    """Write each file (22,050 Hz, mono); with `alignments` also a TextGrid beside it, with the exact sample at which
    each word and each phone begins. The same call writes the same bytes.

    Raises MissingPackageError without espeakng-loader.
    """
    require_modules("the embedded corpus", "espeakng_loader", install="'phonate[espeak]'")
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            pool.submit(_write, jobs, alignments).result()
    except BrokenProcessPool as error:
        raise PhonateError("the espeak-ng library crashed while it made the embedded corpus") from error


@dataclass(frozen=True)
class EmbeddedCorpus:
    """Where the corpus lies."""

    folder: Path
    """A sub-folder for each speaker, with a wav file for each sentence."""
    unseen: tuple[Path, ...]
    """Sentences of a speaker who is not in `folder`."""


def make_corpus(
    folder: Path, speakers: Sequence[Speaker] = SPEAKERS, sentences: int | None = None, alignments: bool = False
) -> EmbeddedCorpus:
    """Write `folder/speakers/<speaker>/<nn>.wav` and `folder/unseen/guest-<nn>.wav` by `say`, with a TextGrid beside
    each where `alignments` are wished.

    `sentences` takes the first so many of each speaker's. Raises MissingPackageError without espeakng-loader, and
    InputError when there are fewer sentences than asked for.
    """
    if sentences is not None and not 1 <= sentences <= len(SENTENCES):
        raise InputError(f"the embedded corpus has 1 to {len(SENTENCES)} sentences a speaker, not {sentences}")
    spoken = folder / "speakers"
    unseen = tuple(folder / "unseen" / f"{GUEST.name}-{n:02d}.wav" for n in range(len(UNSEEN_SENTENCES)))
    jobs = [
        (spoken / speaker.name / f"{number:02d}.wav", text, speaker)
        for speaker in speakers
        for number, text in enumerate(SENTENCES[:sentences])
    ]
    jobs += [(path, text, GUEST) for path, text in zip(unseen, UNSEEN_SENTENCES, strict=True)]
    say(jobs, alignments)
    return EmbeddedCorpus(spoken, unseen)


# ---------------------------------------------------- A voice to learn to speak with, made on the spot

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


def sentences(count: int, seed: int = 0) -> list[str]:
    """So many different sentences; a longer list begins with a shorter one of the same seed."""
    rng = random.Random(seed)
    unique: dict[str, None] = {}
    while len(unique) < count:
        text = rng.choice(_FRAMES).format(
            **{
                name + again: rng.choice(choices.split("|"))
                for again in ("", "2")
                for name, choices in (("who", _WHO), ("did", _DID), ("what", _WHAT), ("where", _WHERE), ("when", _WHEN))
            }
        )
        unique[text[0].upper() + text[1:]] = None
    return list(unique)


def make_voice(folder: Path, count: int = 500) -> None:
    """Write `folder/wavs/<nnnn>.wav`, 22,050 Hz, mono, each with a TextGrid of its phones beside it, and
    `folder/metadata.csv` (`id|text`).

    The same call writes the same bytes. Raises MissingPackageError without espeakng-loader.
    """
    spoken = {f"{number:04d}": text for number, text in enumerate(sentences(count))}
    say([(folder / "wavs" / f"{name}.wav", text, SPEAKER) for name, text in spoken.items()], alignments=True)
    rows = "".join(f"{name}|{text}\n" for name, text in spoken.items())
    (folder / "metadata.csv").write_text(rows, encoding="utf-8")
