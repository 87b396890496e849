"""Where durations come from: TextGrids, espeak-ng's own times, and an aligner that learns them."""

from __future__ import annotations

import itertools
import re
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from praatio.textgrid import IntervalTier, Textgrid

from phonate.config.errors import DataError, InputError, Interrupted, command_line
from phonate.nn.aligner import best_durations
from phonate.tasks.speech import durations as espeak_times
from phonate.tasks.speech import durations as textgrids
from phonate.tasks.speech.aligner import AlignmentDataset
from phonate.tasks.speech.data import SpeechCorpus
from phonate.tasks.speech.durations import frames_between
from phonate.tasks.speech.settings import SpeechData
from phonate.text.phonemes import Word, phonemizer
from phonate.training.trainer import Trainer
from phonate.workflows.demo import embedded

SECONDS = 2.0
SENTENCES = 12
TEXT = "The cat's here, Thursday."
WORDS = [
    ("the", 0.30, [("DH", 0.05), ("AH0", 0.10)]),
    ("cat's", 0.45, [("K", 0.10), ("AE1", 0.15), ("T", 0.05), ("S", 0.05)]),
    ("here", 0.80, [("HH", 0.05), ("IH1", 0.10), ("R", 0.15)]),
    ("thursday", 1.25, [("TH", 0.10), ("ER1", 0.10), ("Z", 0.05), ("D", 0.05), ("EY2", 0.20)]),
]
"""(label, start, phones with their lengths) of TEXT; there are pauses before "the", "thursday" and at the end."""

Spoken = list[tuple[str, float, list[tuple[str, float]]]]


def write_grid(path: Path, spoken: Spoken, length: float = SECONDS, prefix: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    words, phones = [], []
    for label, start, parts in spoken:
        at = start
        for phone, lasts in parts:
            end = round(at + lasts, 5)  # praatio refuses what overlaps by a rounding error
            phones.append((at, end, phone))
            at = end
        words.append((start, at, label))
    grid = Textgrid(0.0, length)
    grid.addTier(IntervalTier(f"{prefix}words", words, 0.0, length))
    grid.addTier(IntervalTier(f"{prefix}phones", phones, 0.0, length))
    grid.save(str(path), format="long_textgrid", includeBlankSpaces=True)


@pytest.fixture
def voice(tmp_path: Path) -> Path:
    """A folder with one recording of noise that lasts two seconds, with TEXT."""
    folder = tmp_path / "voice"
    (folder / "wavs").mkdir(parents=True)
    noise = 0.1 * np.random.default_rng(0).standard_normal(int(SECONDS * 22050))
    soundfile.write(folder / "wavs" / "a1.wav", noise, 22050)
    (folder / "metadata.csv").write_text(f"a1|{TEXT}\n", encoding="utf-8")
    return folder


def corpus_of(folder: Path, durations: str, **changes: Any) -> SpeechCorpus:
    return SpeechCorpus(
        SpeechData(path=str(folder), cache_dir=str(folder.parent / "cache"), durations=durations, **changes)
    )


def with_grid(voice: Path, spoken: Spoken, name: str = "a1.TextGrid", **changes: Any) -> SpeechCorpus:
    write_grid(voice.parent / "aligned" / name, spoken, **changes)
    return corpus_of(voice, "mfa", alignments=str(voice.parent / "aligned"))


def starts(corpus: SpeechCorpus, position: int = 0) -> dict[int, int]:
    durations = corpus.durations[position][:, 0].astype(int)
    return dict(enumerate(np.cumsum(durations) - durations))


@pytest.mark.parametrize(("name", "prefix"), [("a1.TextGrid", ""), ("speaker/a1.TextGrid", "speaker - ")])
def test_a_textgrid_gives_every_phone_its_frames_and_keeps_the_pauses(voice: Path, name: str, prefix: str) -> None:
    corpus = with_grid(voice, WORDS, name, prefix=prefix)
    words = corpus.words[0]
    assert [word.text.lower() for word in words] == ["the", "cat's", "here", "thursday"]
    durations = corpus.durations[0][:, 0]
    tokens = corpus.inventory.tokens(words)
    assert len(durations) == len(tokens)
    assert durations.sum() == corpus.prepared.index.frames[0]
    rate = 22050 / 256
    expected = iter(np.cumsum([start, *(lasts for _, lasts in parts)]) for _, start, parts in WORDS)
    wanted = [round(second * rate) for seconds in expected for second in seconds]
    assert np.cumsum(durations)[:-1].astype(int).tolist() == wanted
    pause = tokens.index(",")
    assert durations[pause] == round(1.25 * rate) - round(1.10 * rate)  # between "here," and "thursday"
    assert durations[0] == round(0.30 * rate)
    assert durations[-1] == pytest.approx((SECONDS - 1.75) * rate, abs=1.5)


def test_a_known_variant_is_what_was_said(voice: Path) -> None:
    variant = [("the", 0.30, [("DH", 0.05), ("IY0", 0.10)]), *WORDS[1:]]
    corpus = with_grid(voice, variant)
    assert corpus.words[0][0].phones == ("DH", "IY0")
    assert corpus.durations[0].sum() == corpus.prepared.index.frames[0]
    shorter = [*variant[:3], ("thursday", 1.25, [("TH", 0.1), ("ER1", 0.1), ("Z", 0.05), ("D", 0.05), ("IY0", 0.2)])]
    changed = with_grid(voice, shorter)
    assert changed.words[0][3].phones[-1] == "IY0"
    assert len(changed.durations[0]) == len(changed.inventory.tokens(changed.words[0]))


def test_stress_alone_makes_no_variant(voice: Path) -> None:
    stressed = [("the", 0.30, [("DH", 0.05), ("AH1", 0.10)]), *WORDS[1:]]
    assert with_grid(voice, stressed).words[0] == with_grid(voice, WORDS).words[0]


def test_clitics_that_stand_apart_are_one_word(voice: Path) -> None:
    label, start, parts = WORDS[1]
    apart = [WORDS[0], ("cat", start, parts[:3]), ("'s", start + 0.30, parts[3:]), *WORDS[2:]]
    assert starts(with_grid(voice, apart)) == starts(with_grid(voice, WORDS))
    assert label == "cat's"


THURSDAY = ("thursday", 1.25, [("TH", 0.1), ("ER1", 0.1), ("Z", 0.05), ("D", 0.05), ("EY2", 0.2)])


@pytest.mark.parametrize(
    ("spoken", "message"),
    [
        (
            [*WORDS[:3], ("friday", *THURSDAY[1:])],
            "a1: .*'Thursday' .*'friday'",
        ),
        (WORDS[:3], "a1: .*'Thursday' .*'nothing'"),
        ([*WORDS, ("now", 1.8, [("N", 0.05)])], "a1: .*'now' after the end"),
        (
            [*WORDS[:3], ("thursday", 1.25, [("TH", 0.1), ("EY2", 0.2)])],
            "'Thursday' .*TH ER1 Z D EY. .*TH EY2",
        ),
        ([("the", 0.3, [("spn", 0.1)]), *WORDS[1:]], "'The' .*DH AH0 .*spn"),
        ([("the", 0.3, [("DH", 0.05), ("Q", 0.1)]), *WORDS[1:]], "'The' .*DH AH0 .*DH Q"),
    ],
    ids=["wrong word", "missing word", "one more word", "missing phones", "spoken noise", "no phone of ours"],
)
def test_what_does_not_belong_to_the_text_is_an_error_that_names_it(voice: Path, spoken: Spoken, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        with_grid(voice, spoken).durations  # noqa: B018
    assert "a1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_broken_or_of_another_recording_are_errors(voice: Path) -> None:
    folder = voice.parent / "aligned"
    with pytest.raises(InputError, match=r"data\.alignments"):
        corpus_of(voice, "mfa").durations  # noqa: B018
    with pytest.raises(DataError, match="no such folder"):
        corpus_of(voice, "mfa", alignments=str(folder)).durations  # noqa: B018
    folder.mkdir()
    with pytest.raises(DataError, match="a1: has no TextGrid"):
        corpus_of(voice, "mfa", alignments=str(folder)).durations  # noqa: B018
    (folder / "a1.TextGrid").write_text("nothing of the kind")
    with pytest.raises(DataError, match="readable TextGrid"):
        corpus_of(voice, "mfa", alignments=str(folder)).durations  # noqa: B018
    later: Spoken = [*WORDS[:3], ("thursday", 5.0, THURSDAY[2])]
    with pytest.raises(DataError, match=r"a1: .*5\.50 s, .*2\.0"):
        with_grid(voice, later, length=6.0).durations  # noqa: B018


def test_clips_whose_alignment_is_flawed_are_left_out_counted_and_named(
    voice: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown word, no TextGrid at all, one that can't be read; the others are aligned."""
    names = ["a1", "b2", "c3", "d4", "e5"]
    for name in names[1:]:
        shutil.copy(voice / "wavs" / "a1.wav", voice / "wavs" / f"{name}.wav")
    (voice / "metadata.csv").write_text("".join(f"{name}|{TEXT}\n" for name in names), encoding="utf-8")
    aligned = voice.parent / "aligned"
    write_grid(aligned / "a1.TextGrid", WORDS)
    write_grid(aligned / "b2.TextGrid", [("<unk>", 0.3, [("spn", 0.1)]), *WORDS[1:]])
    (aligned / "d4.TextGrid").write_text("nothing of the kind")
    write_grid(aligned / "e5.TextGrid", WORDS)
    for _ in range(2):  # the durations are cached, the warning is not
        caplog.clear()
        corpus = corpus_of(voice, "mfa", alignments=str(aligned))
        index = corpus.prepared.index
        used = [index.id[position] for split in ("train", "validation") for position in corpus.positions(split)]
        assert sorted(used) == ["a1", "e5"]
        assert "3 recordings can't be aligned with their texts, and are left out" in caplog.text
        for what in ("c3: has no TextGrid", "b2: the word 'The'", "d4.TextGrid: not a readable TextGrid"):
            assert what in caplog.text


def test_clips_that_could_not_be_aligned_are_named_in_every_run(
    voice: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(voice / "wavs" / "a1.wav", voice / "wavs" / "b2.wav")
    (voice / "metadata.csv").write_text(f"a1|{TEXT}\nb2|{TEXT}\n", encoding="utf-8")

    def align(position, words):
        if position == 1:
            raise DataError("too short for its text")
        return np.ones(3)

    monkeypatch.setattr("phonate.tasks.speech.data.SpeechCorpus._aligner", lambda corpus: align)
    for reason in ("can't be aligned with its text", "could not be aligned with its text"):
        caplog.clear()
        assert len(corpus_of(voice, "pocketsphinx").durations[1]) == 0
        assert f"1 recording {reason}, and is left out: b2" in caplog.text


@pytest.fixture(scope="module")
def spoken(espeak: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LJSpeech's layout of sentences that espeak said, with its TextGrids."""
    folder = tmp_path_factory.mktemp("spoken")
    speaker = embedded.SPEAKERS[0]
    made = embedded.make_corpus(folder / "made", [speaker], SENTENCES, alignments=True)
    shutil.copytree(made.folder / speaker.name, folder / "voice" / "wavs")
    rows = [f"{number:02d}|{text}" for number, text in enumerate(embedded.SENTENCES[:SENTENCES])]
    (folder / "voice" / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / "voice"


def test_espeaks_times_are_exact_to_the_sample(spoken: Path) -> None:
    for path in sorted((spoken / "wavs").glob("*.wav")):
        file = soundfile.info(path)
        grid = _all_spans(path.with_suffix(".TextGrid"))
        edges = np.array([[start, end] for start, end, _ in grid]) * file.samplerate
        assert np.allclose(edges, np.rint(edges), atol=1e-6), "boundaries lie between samples"
        assert np.rint(np.diff(edges)).sum() == file.frames
        assert (edges[1:, 0] == edges[:-1, 1]).all()


def test_espeaks_times_are_where_the_sound_changes(spoken: Path) -> None:
    """The hiss of s is high and vowels are low: a boundary that was off by a phone would mix them."""
    crossings: dict[str, list[float]] = {"s": [], "iː": []}
    for path in sorted((spoken / "wavs").glob("*.wav")):
        samples, rate = soundfile.read(path)
        for start, end, label in _all_spans(path.with_suffix(".TextGrid")):
            if label in crossings:
                inside = samples[round(start * rate) : round(end * rate)]
                crossings[label].append(float(np.mean(np.diff(np.sign(inside)) != 0)))
    assert np.median(crossings["s"]) > 2 * np.median(crossings["iː"])
    assert min(crossings["s"]) > max(crossings["iː"])


def _all_spans(path: Path) -> list[tuple[float, float, str]]:
    from praatio.textgrid import openTextgrid

    grid = openTextgrid(str(path), includeEmptyIntervals=True)
    return [tuple(entry) for entry in grid.getTier("phones").entries]


def test_espeaks_times_become_frames_of_each_code_point(spoken: Path) -> None:
    corpus = corpus_of(spoken, "espeak", phonemes="espeak")
    for position in range(SENTENCES):
        tokens = corpus.inventory.tokens(corpus.words[position])
        durations = corpus.durations[position][:, 0]
        assert len(tokens) == len(durations)
        assert durations.sum() == corpus.prepared.index.frames[position]
        assert not durations[[token in "ˈˌ" for token in tokens]].any()
        assert (durations[[token in "aeiouɛɪ" for token in tokens]] > 0).mean() > 0.95
        assert durations[-1] > 5  # the silence after the last word


def test_espeaks_times_are_only_for_its_own_speech(voice: Path, spoken: Path) -> None:
    with pytest.raises(DataError, match="speech made by espeak"):
        corpus_of(voice, "espeak", phonemes="espeak").durations  # noqa: B018
    with pytest.raises(InputError, match=r"set data\.phonemes to espeak"):
        corpus_of(spoken, "espeak", phonemes="english").durations  # noqa: B018


def brute_force(scores_TL: np.ndarray, optional_L: np.ndarray) -> float:
    """The best sum of scores over every way to give frames to tokens in order."""
    frames, tokens = scores_TL.shape
    sums = np.concatenate([np.zeros((1, tokens)), np.cumsum(scores_TL, axis=0)])
    best = -np.inf
    for cuts in itertools.combinations_with_replacement(range(frames + 1), tokens - 1):
        edges = np.array([0, *cuts, frames])
        if (np.diff(edges)[~optional_L] > 0).all():
            places = range(tokens)
            best = max(best, sum(sums[edges[i + 1], i] - sums[edges[i], i] for i in places))
    return best


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=3))
def test_the_best_path_is_the_best_of_all(seed: int, sizes: list[tuple[int, int]]) -> None:
    """Against every path there is, in batches of items of several lengths; boundaries, which may be skipped, never
    stand side by side."""
    rng = np.random.default_rng(seed)
    items = []
    for tokens, spare in sizes:
        optional = rng.random(tokens) < 0.5
        optional[1:] &= ~optional[:-1]
        for place in range(1, tokens):
            optional[place] &= not optional[place - 1]
        if optional.all():
            optional[:] = False
        items.append((rng.standard_normal((int((~optional).sum()) + spare, tokens)).astype(np.float32), optional))
    frames, tokens = (max(item[0].shape[axis] for item in items) for axis in (0, 1))
    scores, optional = np.full((len(items), frames, tokens), 50.0, np.float32), np.ones((len(items), tokens), bool)
    for row, (one, skipped) in enumerate(items):
        scores[row, : one.shape[0], : one.shape[1]] = one
        optional[row, : one.shape[1]] = skipped
    lengths, counts = (np.array([item[0].shape[axis] for item in items]) for axis in (0, 1))
    found = best_durations(scores, lengths, counts, optional)
    for row, (one, skipped) in enumerate(items):
        durations = found[row, : counts[row]]
        assert durations.sum() == lengths[row]
        assert not found[row, counts[row] :].any()
        assert (durations[~skipped] > 0).all()
        owner = np.repeat(np.arange(counts[row]), durations)
        assert one[np.arange(lengths[row]), owner].sum() == pytest.approx(brute_force(one, skipped), abs=1e-4)


def test_too_few_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer frames"):
        best_durations(np.zeros((1, 2, 3), np.float32), np.array([2]), np.array([3]), np.zeros((1, 3), bool))


def is_timed(token: str) -> bool:
    """Whether a token of espeak's is a phone, not a boundary or a mark."""
    return unicodedata.category(token[0]) in {"Ll", "Lo"}


def mean_error(found: SpeechCorpus, truth: SpeechCorpus) -> float:
    """Mean distance, in ms, of the beginnings of tokens that are no boundaries."""
    errors: list[float] = []
    for position in range(SENTENCES):
        phones = [is_timed(token) for token in truth.inventory.tokens(truth.words[position])]
        one, other = (np.cumsum(corpus.durations[position][:, 0])[:-1] for corpus in (found, truth))
        errors += np.abs(one - other)[np.array(phones[1:])].tolist()
    return 1000.0 * float(np.mean(errors)) / truth.data.audio.frames_per_second


def uniform(corpus: SpeechCorpus) -> Any:
    """An aligner that knows nothing: each phone is equally long."""

    def align(position: int, words: list[Word]) -> np.ndarray:
        frames = int(corpus.prepared.index.frames[position])
        edges = np.rint(np.linspace(0, frames, len(corpus.inventory.tokens(words)) + 1)).astype(np.int64)
        return np.diff(edges)

    return align


@pytest.mark.parametrize(("frames_per_second", "states"), [(100.0, 3), (86.13, 3), (62.5, 2), (40.0, 1)])
def test_phones_have_states_and_marks_have_none(spoken: Path, frames_per_second: float, states: int) -> None:
    corpus = corpus_of(spoken, "learnt", phonemes="espeak")
    recordings = AlignmentDataset(corpus.prepared, corpus.words, corpus.inventory, frames_per_second)
    tokens = corpus.inventory.tokens(corpus.words[0])
    marks = [token for token in tokens if token in "ˈˌː"]
    phones = [token for token in tokens if is_timed(token)]
    expected = [0 if token in marks else states if token in phones else 1 for token in tokens]
    assert "ː" in marks
    assert recordings.counts(0).tolist() == expected
    item = recordings.item(0)
    assert len(item.states_S) == sum(expected) == item.prior_TS.shape[1]
    assert item.optional_S.sum() == len(tokens) - len(marks) - len(phones)
    first = sum(expected[: tokens.index(phones[0])])
    symbol = corpus.inventory.symbols.index(phones[0])
    assert item.states_S[first : first + states].tolist() == [symbol * states + state for state in range(states)]


@pytest.mark.slow
def test_an_aligner_learns_where_phones_begin(spoken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = corpus_of(spoken, "espeak", phonemes="espeak")
    aligner = corpus_of(spoken, "learnt", phonemes="espeak", aligner_steps=200)
    for position in range(SENTENCES):
        durations = aligner.durations[position][:, 0]
        tokens = aligner.inventory.tokens(aligner.words[position])
        assert durations.sum() == aligner.prepared.index.frames[position]
        assert (durations[[is_timed(token) for token in tokens]] >= 3).all()  # one for each state
        assert not durations[[token in "ˈˌː" for token in tokens]].any()
    guessed = corpus_of(spoken, "learnt", phonemes="espeak", aligner_steps=1)
    monkeypatch.setattr(guessed, "_aligner", lambda: uniform(guessed))
    assert mean_error(aligner, truth) < 60.0
    assert mean_error(guessed, truth) > 150.0
    assert mean_error(aligner, truth) < mean_error(guessed, truth) / 4


@pytest.mark.slow
def test_the_learnt_aligner_is_the_same_each_time_and_goes_on_where_it_was_stopped(
    spoken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phonate.tasks.speech import aligner

    def durations(cache: str) -> list[int]:
        corpus = SpeechCorpus(
            SpeechData(
                path=str(spoken),
                cache_dir=str(tmp_path / cache),
                phonemes="characters",
                durations="learnt",
                aligner_steps=30,
            )
        )
        return np.concatenate([corpus.durations[position][:, 0] for position in range(SENTENCES)]).tolist()

    whole = durations("one")
    original = aligner.AlignmentTask.loss
    seen: list[int] = []

    def stopping(self: Any, *args: Any) -> Any:
        seen.append(self.step)
        if self.step == 15 and seen.count(15) == 1:
            signals[0].received = 2
        return original(self, *args)

    signals: list[Any] = []
    begin = Trainer._begin
    monkeypatch.setattr(Trainer, "_begin", lambda self, saved: (signals.append(self.signals), begin(self, saved))[1])
    monkeypatch.setattr(aligner.AlignmentTask, "loss", stopping)
    with pytest.raises(Interrupted, match="step 16"):
        durations("two")
    seen.clear()
    assert durations("two") == whole
    assert seen[0] == 16


def test_a_stopped_aligner_says_that_it_is_a_preparation_and_how_to_go_on(
    voice: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def align() -> None:
        with command_line(["train", "speech", f"data.path={voice}", "--resume", "auto"]):
            assert len(corpus_of(voice, "learnt", aligner_steps=3, validation=0.0).durations[0])

    began = Trainer._begin
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_begin", lambda self, saved: (began(self, saved), setattr(self.signals, "received", 2)))
        with pytest.raises(Interrupted) as stopped:
            align()
    message = str(stopped.value)
    assert message.startswith(
        "the aligner, a preparation of the voice, whose training has not begun: stopped at step 0;"
    )
    assert message.endswith(f"; continue with: phonate train speech data.path={voice} --resume auto")
    assert (stopped.value.step, stopped.value.exit_code) == (0, 130)
    with caplog.at_level("INFO", "phonate"):
        align()
    assert "first the aligner, which is resumed, learns in 3 steps" in caplog.text


def test_what_is_too_short_for_its_text_is_left_out(voice: Path, caplog: pytest.LogCaptureFixture) -> None:
    long = "Nobody would ever be able to say so many words in two seconds. " * 8
    (voice / "metadata.csv").write_text(f"a1|{long}\na2|Hello there.\n", encoding="utf-8")
    shutil.copy(voice / "wavs/a1.wav", voice / "wavs/a2.wav")
    corpus = corpus_of(voice, "learnt", aligner_steps=2, validation=0.0)
    with caplog.at_level("WARNING", "phonate"):
        assert [len(corpus.durations[position]) > 0 for position in range(2)] == [False, True]
    assert re.search(r"a1: its \d+ frames are too short for the \d+ phones of its text", caplog.text)


def test_a_phone_that_espeak_tells_nothing_of_shares_the_one_before_it(espeak: None) -> None:
    words = phonemizer("espeak")("Nobody noticed the twelve foxes.")
    phones = [phone for word in words for phone in word.phones]
    lost = "".join(phones).index("lv")
    timed = [phone not in "ˈˌ" for phone in phones]
    begins = 0.1 * np.cumsum([0, *timed])[:-1]  # 0.1 s for each but the marks, which stand in front of a vowel
    spans = [
        textgrids.Span(begins[place], begins[place] + 0.1 * timed[place], phone)
        for place, phone in enumerate(phones)
        if place != lost
    ]
    seconds = espeak_times.starts(words, spans, 10.0)
    assert len(seconds) == len(phones) + len(words)
    token = lost + sum(1 for _ in itertools.takewhile(lambda word: word.text != "twelve", words))
    assert seconds[token - 1 : token + 2] == pytest.approx(
        [begins[lost - 1], begins[lost - 1] + 0.05, begins[lost + 1]]
    )
    with pytest.raises(DataError, match="espeak said"):
        espeak_times.starts([*words, *words], spans, 10.0)


def test_times_that_only_differ_by_rounding_are_in_order() -> None:
    """Half a frame and a hair less: one would be rounded up, the next one down."""
    assert frames_between([0.5, 0.5 - 1e-12, 2.0], 3, 1.0).tolist() == [0, 0, 2, 1]
    assert frames_between([1.5, 1.5 - 1e-12, 2.0], 3, 1.0).tolist() == [2, 0, 0, 1]
    with pytest.raises(ValueError, match="begins before"):
        frames_between([1.5, 1.4, 2.0], 3, 1.0)
