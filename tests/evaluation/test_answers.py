"""Answers against responses: the libraries' own figures, other scripts than Latin, and what short responses lack."""

from __future__ import annotations

import pytest

from installed import missing

if missing("sacrebleu", "rouge_score"):
    pytest.skip("needs sacrebleu, rouge_score: pip install 'phonate[eval]'", allow_module_level=True)

from phonate.evaluation.words import AnswerScores, AnswerTokenizer

PAIRS = [
    ("The cat sat on the mat, and looked at the dog.", "The cat sat on a mat and looked at a dog."),
    ("It's 21 miles to the sea; walk on.", "It is 21 miles to the sea."),
    ("Nobody knows what the answer to that would be.", "I do not know."),
]


def test_they_are_the_libraries_own_figures() -> None:
    import sacrebleu
    from rouge_score.rouge_scorer import RougeScorer

    responses, answers = [list(texts) for texts in zip(*PAIRS, strict=True)]
    found = AnswerScores().of_all(responses, answers)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(answers, [responses]).score)
    for name in ("rouge1", "rouge2", "rougeL"):
        each = [RougeScorer([name]).score(response, answer)[name].fmeasure for response, answer in PAIRS]
        assert found[name] == pytest.approx(100 * sum(each) / len(each))
    assert 0 < found["rouge2"] < found["rougeL"] <= found["rouge1"] < 100
    # by hand: 9 of 11 words, of 11 words
    assert AnswerScores().of_one(*PAIRS[0])["rouge1"] == pytest.approx(100 * 9 / 11)


def test_the_signature_says_how_bleu_was_computed() -> None:
    scores = AnswerScores()
    scores.of_all(["one two three four five"], ["one two three four"])
    assert scores.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_the_same_text_has_all_and_another_nothing() -> None:
    scores, response = AnswerScores(), "A red fox saw five more foxes."
    assert scores.of_all([response], [response]) == pytest.approx(dict.fromkeys(("bleu", *_ROUGE), 100.0))
    assert scores.of_all([response], ["Nothing, that is."])["rouge1"] == 0.0
    assert scores.of_all([response], [""]) == dict.fromkeys(("bleu", *_ROUGE), 0.0)


_ROUGE = ("rouge1", "rouge2", "rougeL")


@pytest.mark.parametrize(
    "text",
    ["Über die Straße läuft ein Bär", "ذهب الولد إلى المدرسة صباحا", "यह एक छोटा वाक्य है", "Cafe\u0301 au lait ici"],
)
def test_other_letters_count(text: str) -> None:
    """rouge-score's own tokenizer drops all letters but a to z: equal texts in Arabic would have nothing in common."""
    assert AnswerScores().of_one(text, text) == pytest.approx(dict.fromkeys(("bleu", *_ROUGE), 100.0))
    assert len(AnswerTokenizer().tokenize(text)) == len(text.split())


def test_both_ways_to_write_an_accent_are_one_word() -> None:
    assert AnswerScores().of_one("caf\u00e9", "cafe\u0301")["rouge1"] == 100.0


def test_responses_that_are_too_short_for_bleu_have_none() -> None:
    """Of three words there is no run of four: sacrebleu would give right answers a BLEU of 0."""
    assert AnswerScores().of_all(["Yes it is"], ["Yes it is"]) == dict.fromkeys(_ROUGE, 100.0)
    assert AnswerScores().of_one("Yes it is", "Yes it is")["bleu"] == pytest.approx(100.0)
    assert AnswerScores().of_all(["Yes", "one two three four"], ["Yes", "one"])["bleu"] < 100.0
