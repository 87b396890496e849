#!/usr/bin/env bash
# One would guess that a SentencePiece model of single characters, trained on every character of the phones that it is given,
# gives these phones back. It normalises by NFKC first, to which the raised letters of the IPA are letters: aspirated p is
# p + h, palatalised t is t + j, as in two phones, and pharyngealised m becomes m + a voiced fricative. What German, Russian,
# Hindi or Arabic tell apart by them is one spelling afterwards. With normalization_rule_name="identity" all phones come back.
# A phonate user meets it who makes tokens of phones for a language model or a recogniser of phones by SentencePiece.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check sentencepiece==0.2.3
"$folder/venv/bin/python" - <<'PY'
import io
from importlib.metadata import version

import sentencepiece

print("sentencepiece", version("sentencepiece"))
pairs = [("pʰala", "phala"), ("tʲa", "tja"), ("kʷa", "kwa"), ("mˤa", "mʕa"), ("nˠa", "nɣa")]
pairs += [("aːla", "ala"), ("t̪a", "ta"), ("ẽ", "e")]


def merged(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([word for pair in pairs for word in pair] * 100), model_writer=model, model_type="char",
        character_coverage=1.0, vocab_size=64, hard_vocab_limit=False, minloglevel=2, **options
    )
    encode = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).encode
    return [f"{one} = {other}" for one, other in pairs if encode(one) == encode(other)]


print("tokens are the same:", *merged(), sep="\n  ")
print("with identity:", merged(normalization_rule_name="identity"))
assert len(merged()) == 5, "other phones are the same now"
assert not merged(normalization_rule_name="identity"), "identity no longer keeps phones apart"
PY
