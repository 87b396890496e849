// Splitting long texts into sentences.

import {endOf, fullMatch, matchAt, matches} from "phonate/matching";
import {sentences as rules} from "phonate/rules";

const NO_BREAK = /\uFEFF/g; // white space in JavaScript alone
const WORD = /[\p{L}\p{Nl}\p{No}]+/gu;
const CAPITALS = /(?:[A-Z]\.)+[A-Z]/g;

// The sentences of `text`; those of more than `longest` characters are cut: at clauses if possible, else in front of
// conjunctions, else at spaces. `language` has lists of `abbreviations`, `starters` and `conjunctions`, and whether
// digits with a full stop are `ordinals`.
export function sentences(text, longest, language) {
  const pieces = [];
  let begin = 0;
  text = text.replace(NO_BREAK, "");
  for (const found of matches(rules.END, text)) {
    if (found.index >= begin && !continues(text, found, language)) {
      pieces.push(text.slice(begin, endOf(found)));
      begin = endOf(found);
    }
  }
  pieces.push(text.slice(begin));
  return pieces.map(piece => piece.trim()).filter(Boolean).flatMap(piece => parts(piece, longest, language));
}

// Code points, which Python counts.
const size = text => [...text].length;

// Whether the sentence continues after an apparent end.
function continues(text, found, {abbreviations, starters, ordinals}) {
  if (found[1] === undefined) return false;
  const lower = /^\p{Lowercase}/u.test(text.slice(endOf(found))), paragraph = found[0].includes("\n\n");
  if (lower || paragraph) return lower && !paragraph;
  const before = [...text.slice(Math.max(0, found.index - 40), found.index)].slice(-20).join("");
  const seen = (before + found[0]).trimEnd();
  const last = matches(rules.LAST_WORD, seen)[0];
  if (!last || /[!?…؟।॥۔։።။។]|\.\./.test(found[1])) return false;
  const word = last[1], short = word.toLowerCase();
  if (abbreviations.includes(short)) return true;
  if (abbreviations.includes(`${short}#`) && matchAt(rules.NUMBER, text, endOf(found))) return true;
  const initial = size(word) === 1 && /\p{Uppercase}/u.test(word) && word !== "I";
  if (initial || fullMatch(CAPITALS, word)) return !likelyEnd(text, endOf(found), starters);
  return ordinals && Boolean(fullMatch(rules.ORDINAL, word));
}

// Whether a word that often starts a sentence follows "Plan B.", "U.S." or "P.M."; an initial is none.
function likelyEnd(text, at, starters) {
  const following = matchAt(WORD, text, at);
  return following && starters.includes(following[0].toLowerCase()) && text[endOf(following)] !== ".";
}

// `sentence` in parts of at most `longest` characters, each cut as late as possible.
function parts(sentence, longest, {conjunctions}) {
  const done = [];
  while (size(sentence) > longest) {
    const letters = [...sentence].slice(0, longest + 1), near = letters.join("");
    const clauses = matches(rules.CLAUSE, near).map(endOf), spaces = matches(/\s/g, near).map(endOf);
    const joined = spaces.filter(at => conjunctions.includes(matchAt(WORD, near, at)?.[0].toLowerCase()));
    const isLate = at => size(near.slice(0, at)) >= Math.floor(longest / 3);
    const late = [clauses, joined].map(places => places.filter(isLate));
    const whole = letters.slice(0, longest).join("").length;
    const at = [...late, spaces].find(places => places.length)?.at(-1) ?? whole;
    done.push(sentence.slice(0, at).trim());
    sentence = sentence.slice(at).trim();
  }
  return [...done, sentence].filter(Boolean);
}
