// Splitting long texts into sentences.

import {endOf, fullMatch, matchAt, matches} from "phonate/matching";
import {sentences as rules} from "phonate/rules";

const WORD = /\p{L}+/gu;
const CAPITALS = /(?:[A-Z]\.)+[A-Z]/g;

// The sentences of `text`; those of more than `longest` characters are cut: at clauses if possible, else in front of
// conjunctions, else at spaces. `language` has lists of `abbreviations`, `starters` and `conjunctions`, and whether
// digits with a full stop are `ordinals`.
export function sentences(text, longest, language) {
  const pieces = [];
  let begin = 0;
  for (const found of matches(rules.END, text)) {
    if (found.index >= begin && !continues(text, found, language)) {
      pieces.push(text.slice(begin, endOf(found)));
      begin = endOf(found);
    }
  }
  pieces.push(text.slice(begin));
  return pieces.map(piece => piece.trim()).filter(Boolean).flatMap(piece => parts(piece, longest, language));
}

// Whether the sentence continues after an apparent end.
function continues(text, found, {abbreviations, starters, ordinals}) {
  if (found[1] === undefined) return false;
  const lower = /^\p{Lowercase}/u.test(text.slice(endOf(found))), paragraph = found[0].includes("\n\n");
  if (lower || paragraph) return lower && !paragraph;
  const seen = text.slice(Math.max(0, found.index - 20), endOf(found)).trimEnd();
  const last = matches(rules.LAST_WORD, seen)[0];
  if (!last || /[!?…؟]|\.\./.test(found[1])) return false;
  const word = last[1], initial = word.length === 1 && /\p{Uppercase}/u.test(word) && word !== "I";
  if (initial || abbreviations.includes(word.toLowerCase())) return true;
  if (ordinals && /^\p{Nd}+$/u.test(word) && word.length <= rules.ORDINAL_DIGITS) return true;
  if (!fullMatch(CAPITALS, word)) return false;
  // "U.S." or "P.M.", but not before a word that often starts a sentence
  const following = matchAt(WORD, text, endOf(found));
  return !following || !starters.includes(following[0].toLowerCase());
}

// `sentence` in parts of at most `longest` characters, each cut as late as possible.
function parts(sentence, longest, {conjunctions}) {
  const done = [];
  while (sentence.length > longest) {
    const near = sentence.slice(0, longest + 1);
    const clauses = matches(rules.CLAUSE, near).map(endOf), spaces = matches(/\s/g, near).map(endOf);
    const joined = spaces.filter(at => conjunctions.includes(matchAt(WORD, near, at)?.[0].toLowerCase()));
    const late = [clauses, joined].map(places => places.filter(at => at >= Math.floor(longest / 3)));
    const at = [...late, spaces].find(places => places.length)?.at(-1) ?? longest;
    done.push(sentence.slice(0, at).trim());
    sentence = sentence.slice(at).trim();
  }
  return [...done, sentence].filter(Boolean);
}
