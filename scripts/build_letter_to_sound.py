"""Builds `src/phonate/text/english/letter_to_sound.json` from the English lexicon, and prints how good it is.

    python scripts/build_letter_to_sound.py

Every letter of a word is aligned with none, one or two phones by Viterbi training. Then, for each letter, a tree
of contexts (the letter to the right, to the left, two to the right, ...) says which phones it gives; a longer
context is kept only where it changes something. Stress comes from the word's ending and its number of vowels.
2 % of the words are held out for the figures.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import random
import re
from pathlib import Path

from phonate.text.english import arpabet, derivation, lexicon

Aligned = list[tuple[str, str]]
"""(letter, its phones joined by spaces) of one word."""

OUT = Path(__file__).parent.parent / "src" / "phonate" / "text" / "english" / "letter_to_sound.json"


def vocabulary() -> list[tuple[str, tuple[str, ...]]]:
    """(word, phones) for every plain word of the lexicon, in a fixed order."""
    found: dict[str, tuple[str, ...]] = {}
    for key in lexicon.words():
        word = key.lower()
        if re.fullmatch(r"[a-z]{2,}", word) and not key[1:].isupper() and word not in found:
            phones = lexicon.entry(key)["DEFAULT"]
            if any(map(arpabet.is_vowel, phones)) and len(phones) <= 2 * len(word):
                found[word] = phones
    return sorted(found.items())


def align(word: str, phones: tuple[str, ...], costs: dict[tuple[str, str], float]) -> Aligned | None:
    """The cheapest alignment, or None where there is none."""
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for letter in word:
        row: dict[int, tuple[float, int]] = {}
        for at, (cost, _) in best[-1].items():
            for taken in range(min(2, len(phones) - at) + 1):
                chunk = " ".join(phones[at : at + taken])
                total = cost + costs.get((letter, chunk), 14.0 + taken)
                if at + taken not in row or total < row[at + taken][0]:
                    row[at + taken] = (total, at)
        best.append(row)
    at = len(phones)
    if at not in best[-1]:
        return None
    aligned: Aligned = []
    for n in range(len(word), 0, -1):
        before = best[n][at][1]
        aligned.append((word[n - 1], " ".join(phones[before:at])))
        at = before
    return aligned[::-1]


def first_costs(words: list[tuple[str, tuple[str, ...]]]) -> dict[tuple[str, str], float]:
    """Costs to begin with: how often letter and phone stand at about the same place; two phones cost extra."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    letters: collections.Counter[str] = collections.Counter()
    for word, phones in words:
        for n, letter in enumerate(word):
            place = round(n * (len(phones) - 1) / max(1, len(word) - 1))
            counts[letter, phones[place]] += 1
            letters[letter] += 1
    costs = {key: -math.log(count / letters[key[0]]) for key, count in counts.items()}
    costs.update({(letter, ""): 3.0 for letter in letters})
    return costs


def train_alignment(words: list[tuple[str, tuple[str, ...]]], rounds: int) -> dict[tuple[str, str], float]:
    """Viterbi training of the costs."""
    costs = first_costs(words)
    for _ in range(rounds):
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        for word, phones in words:
            counts.update(align(word, phones, costs) or [])
        letters: collections.Counter[str] = collections.Counter()
        for (letter, _chunk), count in counts.items():
            letters[letter] += count
        costs = {key: -math.log(count / letters[key[0]]) for key, count in counts.items()}
    return costs


def grow(cases: list[tuple[str, str]], key: str, given: str, table: dict[str, str], least: int) -> None:
    """Put into `table` what `cases` (context, phones) say beyond `given`, for this context and longer ones.

    A context is followed only while its cases disagree, and kept only where it is right `least` times more often
    than the shorter one.
    """
    counts = collections.Counter(label for _, label in cases)
    label, count = counts.most_common(1)[0]
    if label != given and (count - counts[given] >= least or not key[1:]):
        table[key] = label
        given = label
    depth = len(key) - 1
    if len(counts) == 1 or depth == derivation.LONGEST:
        return
    branches: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for context, label in cases:
        branches[context[depth]].append((context, label))
    for character, branch in branches.items():
        if len(branch) >= least:
            grow(branch, key + character, given, table, least)


def contexts_table(aligned: list[Aligned], least: int) -> dict[str, str]:
    """Letter and context -> phones."""
    cases: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for pairs in aligned:
        word = "".join(letter for letter, _ in pairs)
        for n, (letter, chunk) in enumerate(pairs):
            cases[letter].append((derivation.context(word, n), chunk))
    table: dict[str, str] = {}
    for letter, found in sorted(cases.items()):
        grow(found, letter, "?", table, least)
    return table


def stress_table(words: list[tuple[str, tuple[str, ...]]], least: int) -> dict[str, str]:
    """Number of vowels and ending -> which vowel, counted from the end, bears the primary stress."""
    cases: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for word, phones in words:
        vowels = [phone for phone in phones if arpabet.is_vowel(phone)]
        primary = next((n for n, phone in enumerate(reversed(vowels)) if phone.endswith("1")), 0)
        ending = word[::-1][: derivation.LONGEST].ljust(derivation.LONGEST, "#")
        cases[str(min(len(vowels), 9))].append((ending, str(primary)))
    table: dict[str, str] = {}
    for number, found in sorted(cases.items()):
        grow(found, number, "?", table, least)
    return table


def by_label(table: dict[str, str]) -> dict[str, str]:
    """The table turned about, which is smaller: phones -> its contexts, joined by spaces."""
    turned: dict[str, list[str]] = collections.defaultdict(list)
    for key, label in table.items():
        turned[label].append(key)
    return {label: " ".join(sorted(keys)) for label, keys in sorted(turned.items())}


def distance(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Levenshtein distance."""
    row = list(range(len(other) + 1))
    for n, left in enumerate(one, 1):
        above, row[0] = row[0], n
        for m, right in enumerate(other, 1):
            above, row[m] = row[m], min(row[m] + 1, row[m - 1] + 1, above + (left != right))
    return row[-1]


def report(words: list[tuple[str, tuple[str, ...]]]) -> None:
    """Print the figures of the table that was written, on held-out words."""
    errors = phones_in_all = right = right_with_stress = right_stress = 0
    for word, phones in words:
        guess = derivation.pronounce_by_rules(word)
        plain, wanted = arpabet.without_stress(guess), arpabet.without_stress(phones)
        errors += distance(plain, wanted)
        phones_in_all += len(wanted)
        right += plain == wanted
        right_with_stress += guess == phones
        right_stress += [p[-1] == "1" for p in guess if p[-1].isdigit()] == [
            p[-1] == "1" for p in phones if p[-1].isdigit()
        ]
    print(f"held-out words: {len(words)}")
    print(f"phone error rate without stress: {100 * errors / phones_in_all:.1f} %")
    print(f"words right without stress: {100 * right / len(words):.1f} %, with: {right_with_stress / len(words):.1%}")
    print(f"primary stress right: {100 * right_stress / len(words):.1f} %")


def main() -> None:
    """Build, write, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--least", type=int, default=1, help="cases a context needs (default: 1)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of alignment training (default: 4)")
    options = parser.parse_args()
    words = vocabulary()
    random.Random(1).shuffle(words)
    held_out, training = words[: len(words) // 50], words[len(words) // 50 :]
    unstressed = [(word, arpabet.without_stress(phones)) for word, phones in training]
    costs = train_alignment(unstressed[:30000], options.rounds)
    aligned = [pairs for word, phones in unstressed if (pairs := align(word, phones, costs))]
    print(f"words: {len(training)} for training, {len(aligned)} of them aligned")
    table = {
        "contexts": by_label(contexts_table(aligned, options.least)),
        "stress": by_label(stress_table(training, 4)),
    }
    document = json.dumps(table, separators=(",", ":"), sort_keys=True).encode()
    OUT.write_bytes(document)
    print(f"{OUT.name}: {OUT.stat().st_size} bytes")
    derivation.forget_rules()
    report(held_out)


if __name__ == "__main__":
    main()
