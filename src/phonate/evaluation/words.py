"""Scores of words: error rates of transcripts, and answers compared with references.

Word and character error rates are of any language. What counts skipped and repeated words is for English: both texts
are first normalised as in the Whisper paper (Radford et al. 2022, appendix C), so that "21" and "twenty-one", "colour"
and "color", "it's" and "it is" are equal.

BLEU (Papineni et al. 2002, https://aclanthology.org/P02-1040) measures how much of the answers occurs in the
responses. ROUGE (Lin 2004, https://aclanthology.org/W04-1013) also measures how much of the responses occurs in the
answers. Neither considers meaning: a correct answer in other words scores low.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import InputError, optional_package, require_modules
from phonate.data.corpora.rows import Segment
from phonate.data.labels import Texts, require_same_names

# ------------------------------------------------------------ Word and character error rates, in any language


_ACCENTS = re.compile(
    "[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f]"
)
"""Accents, and the points of Hebrew and Arabic, without which words are written, too. The marks of other scripts are
their vowels and tones."""


def plain(text: str) -> str:
    """Lower-case words and digits without accents and punctuation, separated by single spaces."""
    letters = _ACCENTS.sub("", unicodedata.normalize("NFKD", text.lower().replace("-", " ").replace("ı", "i")))
    spoken = "".join(one for one in letters if one.isalnum() or one.isspace() or unicodedata.category(one)[0] == "M")
    return unicodedata.normalize("NFC", " ".join(spoken.split()))


def character_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Character error rate over all pairs, after `plain`. References must not be empty."""
    edits, length = character_edits(references, hypotheses)
    return edits / length


def word_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Word error rate over all pairs, after `plain`. References must not be empty."""
    edits, length = word_edits(references, hypotheses)
    return edits / length


def word_edits(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    """Word edits (substitutions, insertions, deletions) and reference words of all pairs, after `plain`."""
    return _edits(str.split, references, hypotheses)


def character_edits(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    """Character edits and reference characters of all pairs, after `plain`."""
    return _edits(list, references, hypotheses)


def _edits(units: Callable[[str], list[str]], references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    normal = [plain(text) for text in references]
    if not normal or not all(normal):
        raise ValueError("an error rate needs reference texts with at least one word each")
    pairs = [(units(text), units(plain(hypothesis))) for text, hypothesis in zip(normal, hypotheses, strict=True)]
    return sum(edit_distance(text, hypothesis) for text, hypothesis in pairs), sum(len(text) for text, _ in pairs)


COLLAR = 5.0
"""Seconds by which a word of a hypothesis may be off in tcpWER, as MeetEval recommends."""


@dataclass(frozen=True)
class _TimedWords:
    """The words of one speaker, after `plain`, with their times."""

    words: list[str]
    times_N2: NDArray[np.float64]
    """Start and end in seconds."""


_SILENT = _TimedWords([], np.zeros((0, 2)))


def _spoken_by_speaker(segments: Sequence[Segment]) -> list[_TimedWords]:
    """The words of each speaker, in the order of the segments. Of a segment of several words each gets a share of its
    time by the number of its characters, as in MeetEval."""
    spoken: dict[str | None, tuple[list[str], list[NDArray[np.float64]]]] = {}
    for one in segments:
        words, times = spoken.setdefault(one.speaker, ([], []))
        said = plain(one.text or "").split()
        edges = np.cumsum([0, *map(len, said)]) / max(1, sum(map(len, said)))
        edges = one.start + edges * (cast(float, one.end) - one.start)
        words += said
        times.append(np.stack([edges[:-1], edges[1:]], axis=1))
    return [_TimedWords(words, np.concatenate(times)) for words, times in spoken.values()]


def _concatenated_edits(
    references: Sequence[_TimedWords], hypotheses: Sequence[_TimedWords], collar: float | None = None
) -> int:
    """Word edits of a conversation: of each speaker all words in one piece, with the speakers mapped such that the
    edits are fewest. Over the words of the reference this is cpWER (Watanabe et al. 2020, "CHiME-6 Challenge"), and
    with a `collar` in seconds tcpWER (von Neumann et al. 2023, "MeetEval"), where words are compared only if the middle
    of the hypothesis's word is less than the collar outside of the reference's."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and nothing else needs it

    size = max(len(references), len(hypotheses))
    edits = np.zeros((size, size), dtype=np.int64)
    for row, ref in enumerate([*references, *([_SILENT] * (size - len(references)))]):
        for column, hyp in enumerate([*hypotheses, *([_SILENT] * (size - len(hypotheses)))]):
            edits[row, column] = edit_distance(
                ref.words, hyp.words, None if collar is None else _near(ref, hyp, collar)
            )
    rows, columns = linear_sum_assignment(edits)
    return int(edits[rows, columns].sum())


def _near(ref: _TimedWords, hyp: _TimedWords, collar: float) -> Callable[[int], NDArray[np.bool_]]:
    middle_H = hyp.times_N2.mean(axis=1)
    first_H, last_H = middle_H - collar, middle_H + collar
    return lambda word: (ref.times_N2[word, 0] < last_H) & (ref.times_N2[word, 1] > first_H)


@dataclass(frozen=True)
class TranscriptErrors:
    """Edits of what is said in recordings; those of several are accumulated with +."""

    word_edits: int = 0
    words: int = 0
    """Of the reference."""
    character_edits: int = 0
    characters: int = 0
    speaker_edits: int | None = 0
    """Word edits where each speaker's words are one text; None where one side does not name its speakers."""
    timed_edits: int | None = 0
    """The same of words that are said at the same time; None where one side does not name its speakers."""

    def __add__(self, other: TranscriptErrors) -> TranscriptErrors:
        def both(one: int | None, two: int | None) -> int | None:
            return None if one is None or two is None else one + two

        return TranscriptErrors(
            self.word_edits + other.word_edits,
            self.words + other.words,
            self.character_edits + other.character_edits,
            self.characters + other.characters,
            both(self.speaker_edits, other.speaker_edits),
            both(self.timed_edits, other.timed_edits),
        )

    def document(self) -> dict[str, float | int | None]:
        """Rates (None without a reference or speakers) and counts."""

        def rate(edits: int | None, length: int) -> float | None:
            return edits / length if length and edits is not None else None

        return {
            "wer": rate(self.word_edits, self.words),
            "cer": rate(self.character_edits, self.characters),
            "cpwer": rate(self.speaker_edits, self.words),
            "tcpwer": rate(self.timed_edits, self.words),
            **asdict(self),
        }


def score_transcripts(
    reference: Mapping[str, Texts], hypothesis: Mapping[str, Texts], collar: float = COLLAR
) -> dict[str, TranscriptErrors]:
    """The errors of each recording of the reference, and of all as `total`. A recording that the hypothesis lacks has
    all of its words deleted. `collar`: seconds by which words may be off in tcpWER.

    Raises InputError for a recording that the reference lacks, and a negative collar.
    """
    if not collar >= 0:
        raise InputError(f"collar {collar:g}: must be 0 or more seconds; {COLLAR:g} is usual for words")
    require_same_names(reference, hypothesis, "add it to the reference, or leave it out")
    nothing = Texts([], [])
    scores = {
        name: _transcript_errors(reference[name], hypothesis.get(name, nothing), collar) for name in sorted(reference)
    }
    return {**scores, "total": sum(scores.values(), TranscriptErrors())}


def _transcript_errors(reference: Texts, hypothesis: Texts, collar: float) -> TranscriptErrors:
    ref, hyp = (plain(" ".join(one.text or "" for one in side.segments)) for side in (reference, hypothesis))
    speakers = timed = None
    if all(one.speaker is not None for side in (reference, hypothesis) for one in (*side.segments, *side.words)):
        speakers = _concatenated_edits(_spoken_by_speaker(reference.segments), _spoken_by_speaker(hypothesis.segments))
        timed = _concatenated_edits(_spoken_by_speaker(reference.words), _spoken_by_speaker(hypothesis.words), collar)
    return TranscriptErrors(
        edit_distance(ref.split(), hyp.split()),
        len(ref.split()),
        edit_distance(list(ref), list(hyp)),
        len(ref),
        speakers,
        timed,
    )


def edit_distance(
    one: Sequence[str], other: Sequence[str], near: Callable[[int], NDArray[np.bool_]] | None = None
) -> int:
    """The fewest substitutions, insertions and deletions that make `other` of `one` (Levenshtein).

    `near(number)`: which units (N,) of `other` that one of `one` may be compared with; None: with all."""
    numbers = {unit: number for number, unit in enumerate({*one, *other})}
    other_N = np.array([numbers[unit] for unit in other], dtype=np.int64)
    place_N = np.arange(len(other) + 1)
    cost_N = place_N  # of making the first N units of `other` of nothing
    for row, unit in enumerate(one, start=1):
        differs_N = (other_N != numbers[unit]).astype(np.int64)
        if near is not None:
            differs_N[~near(row - 1)] = 2  # as much as deleting the one and inserting the other
        replaced_N = np.minimum(cost_N[:-1] + differs_N, cost_N[1:] + 1)
        # An insertion costs one more than the place before: a running minimum, counted from the first place.
        cost_N = np.minimum.accumulate(np.concatenate([[row], replaced_N]) - place_N) + place_N
    return int(cost_N[-1])


# -------------------------------- Word errors of a transcript: substituted, skipped and repeated words

_LONGEST_REPEAT = 4
_SPOKEN = {
    r"\betc\b\.?": "et cetera",
    r"\bvs\b\.?": "versus",
    r"\bno\.\s*(?=\d)": "number ",
    r"\bo'clock\b": "oclock",  # otherwise the o would become a zero
    r"(?<=\d)'s\b": "s",
    r"(?<!\S)[-\u2212](?=\d)": "minus ",  # the normaliser drops the sign, and makes one of "minus five"
    r"(?<=\d):00\b(?!:)": "",
    r"(?<=\d):0(?=[1-9]\b)": " oh ",  # otherwise without the zero, which "ten oh five" has
    r"(?<=\d)\s+%": "%",
    "&": " and ",
}

Words = list[str]


@dataclass(frozen=True)
class WordErrors:
    """Word counts; add the counts of several texts with +."""

    substituted: int = 0
    inserted: int = 0
    deleted: int = 0
    skipped: int = 0
    """Deleted words that were not spoken: their letters are not part of a neighbouring word."""
    repeated: int = 0
    """Inserted words that repeat the one to four words next to them."""
    words: int = 0
    """Words in the texts."""

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    @property
    def rate(self) -> float:
        """Word error rate: substituted, inserted and deleted over the words of the texts."""
        if not self.words:
            raise ValueError("an error rate needs a text with at least one word")
        return (self.substituted + self.inserted + self.deleted) / self.words


def spoken_form(text: str) -> str:
    """Normalise English text: lower case, numbers in digits, American spelling, contractions written out.

    Fillers (um, uh, hmm) are removed; text in brackets is kept, since it is read aloud.
    """
    normal = re.sub(r"[()<>\[\]]", " ", text.lower().replace("’", "'"))
    for pattern, replacement in _SPOKEN.items():
        normal = re.sub(pattern, replacement, normal)
    return str(_normaliser()(normal)).strip()


def count_word_errors(references: Sequence[str], hypotheses: Sequence[str]) -> WordErrors:
    """Errors summed over all pairs of a text and its transcript, both in English.

    Differences in word boundaries only ("every one", "everyone") are not errors.
    """
    total = WordErrors()
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        total += _errors(spoken_form(reference).split(), spoken_form(hypothesis).split())
    return total


def _errors(reference: Words, hypothesis: Words) -> WordErrors:
    if not reference:
        return WordErrors(inserted=len(hypothesis), repeated=len(_repeats(hypothesis)))
    whole = _joined(reference, hypothesis)
    ways = [_compared(reference, hypothesis), _compared(whole, _joined(hypothesis, whole))]
    return replace(min(ways, key=lambda way: way.substituted + way.inserted + way.deleted), words=len(reference))


def _compared(reference: Words, hypothesis: Words) -> WordErrors:
    """The errors of an alignment with minimum edits."""
    output = optional_package("jiwer", "word errors").process_words(" ".join(reference), " ".join(hypothesis))
    chunks = output.alignments[0]
    insertions = [chunk for chunk in chunks if chunk.type == "insert"]
    inserted = {at for chunk in insertions for at in range(chunk.hyp_start_idx, chunk.hyp_end_idx)}
    return WordErrors(
        substituted=output.substitutions,
        inserted=output.insertions,
        deleted=output.deletions,
        skipped=sum(_skipped(region, reference, hypothesis) for region in _regions(chunks)),
        repeated=len(inserted & _repeats(hypothesis)),
    )


@cache
def _normaliser() -> Any:
    return optional_package("whisper_normalizer.english", "comparing words").EnglishTextNormalizer()


def _joined(words: Words, other: Words) -> Words:
    """`words` with neighbours joined if the joined word is more frequent in `other`."""
    missing = Counter(other) - Counter(words)
    joined, at = [], 0
    while at < len(words):
        for length in (3, 2, 1):
            word = "".join(words[at : at + length])
            if length == 1 or (at + length <= len(words) and missing[word] > 0):
                break
        missing[word] -= length > 1
        joined.append(word)
        at += length
    return joined


def _regions(chunks: Sequence[Any]) -> Iterator[list[Any]]:
    """Runs of alignment chunks without an equal one."""
    region: list[Any] = []
    for chunk in chunks:
        if chunk.type != "equal":
            region.append(chunk)
        elif region:
            yield region
            region = []
    if region:
        yield region


def _skipped(region: list[Any], reference: Words, hypothesis: Words) -> int:
    """Number of words in a region that were not spoken; at most the number of deleted ones.

    Only counts words without which the letters of the region match the transcript at least as well: for "business,
    Phil" transcribed as "businessville", "Phil" was spoken.
    """
    deleted: int = sum(chunk.ref_end_idx - chunk.ref_start_idx for chunk in region if chunk.type == "delete")
    if not deleted:
        return 0
    distance = optional_package("rapidfuzz.distance", "word errors").Levenshtein.distance
    sound = "".join(hypothesis[region[0].hyp_start_idx : region[-1].hyp_end_idx])
    words_left = reference[region[0].ref_start_idx : region[-1].ref_end_idx]
    for skipped in range(deleted):
        without = [words_left[:at] + words_left[at + 1 :] for at in range(len(words_left))]
        nearest = min(without, key=lambda words: distance("".join(words), sound))
        if distance("".join(nearest), sound) > distance("".join(words_left), sound):
            return skipped
        words_left = nearest
    return deleted


def _repeats(hypothesis: Words) -> set[int]:
    """Positions of words in a sequence of one to four words that is immediately repeated."""
    places: set[int] = set()
    for length in range(1, _LONGEST_REPEAT + 1):
        for at in range(len(hypothesis) - 2 * length + 1):
            if hypothesis[at : at + length] == hypothesis[at + length : at + 2 * length]:
                places.update(range(at, at + 2 * length))
    return places


# ---------------- Comparison of answers with reference responses: common words and n-grams, in percent

_ROUGE = ("rouge1", "rouge2", "rougeL")


class AnswerTokenizer:
    """Tokenizer for ROUGE: lower-case letters and digits of any script.

    For English, the words are those of rouge-score's own tokenizer, which treats all letters except a to z as spaces.
    """

    def tokenize(self, text: str) -> list[str]:
        """The words of `text`."""
        letters = unicodedata.normalize("NFC", text.lower())
        return "".join(one if unicodedata.category(one)[0] in "LMN" else " " for one in letters).split()


class AnswerScores:
    """BLEU by sacrebleu (Post 2018, https://arxiv.org/abs/1804.08771) and ROUGE by rouge-score, without stemming."""

    @classmethod
    def require(cls) -> None:
        """Raise MissingPackageError if sacrebleu or rouge-score is not installed."""
        require_modules("comparing answers with responses", "sacrebleu", "rouge_score")

    def __init__(self) -> None:
        """Raises MissingPackageError as `require` does."""
        self.require()
        from rouge_score import rouge_scorer
        from sacrebleu import BLEU

        # force: no warning about full stops separated by a space, as in some corpora
        self._bleu, self._bleu_of_one = BLEU(force=True), BLEU(force=True, effective_order=True)
        self._rouge = rouge_scorer.RougeScorer(_ROUGE, tokenizer=AnswerTokenizer())

    @property
    def signature(self) -> str:
        """sacrebleu's signature of the latest corpus BLEU, if any."""
        return str(self._bleu.get_signature())

    def of_one(self, response: str, answer: str) -> dict[str, float]:
        """`bleu` of an answer (with n-grams of up to four words, as available), and the F measures `rouge1`, `rouge2`
        (words and pairs of words) and `rougeL` (longest common subsequence of words); 0 to 100."""
        return {"bleu": float(self._bleu_of_one.sentence_score(answer, [response]).score)} | self._f(response, answer)

    def of_all(self, responses: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
        """`bleu` of a corpus, and the means of the F measures of its answers.

        There is no `bleu` if none of the responses has four words.
        """
        if not responses:
            raise ValueError("no answers to compare")
        bleu = {"bleu": self._corpus(responses, answers)} if self._corpus(responses, responses) else {}
        each = [self._f(response, answer) for response, answer in zip(responses, answers, strict=True)]
        return bleu | {name: sum(one[name] for one in each) / len(each) for name in _ROUGE}

    def _corpus(self, responses: Sequence[str], answers: Sequence[str]) -> float:
        return float(self._bleu.corpus_score(list(answers), [list(responses)]).score)

    def _f(self, response: str, answer: str) -> dict[str, float]:
        scores = self._rouge.score(response, answer)
        return {name: 100.0 * float(scores[name].fmeasure) for name in _ROUGE}
