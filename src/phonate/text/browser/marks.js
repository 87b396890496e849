// The punctuation that a word can have after it.

import {phonemes} from "phonate/rules";

const PARENTHESES = new Set(phonemes.PARENTHESES);

// The strongest mark in `between`, the text between two words; "" if it has none.
export function markOf(between) {
  const plain = between.replaceAll("…", ".").replace(/[—–]/g, "-");
  return [...phonemes.STRONGEST_FIRST].find(mark => plain.includes(mark)) ?? "";
}

// What but a mark sets two words off in `between`: "..." for an ellipsis, "(" for a parenthesis.
export function pauseOf(between) {
  const mark = markOf(between);
  if (mark === "." && between.search(phonemes.ELLIPSIS) >= 0) return "...";
  return ![".", "!", "?"].includes(mark) && [...between].some(letter => PARENTHESES.has(letter)) ? "(" : "";
}

// The mark after a word, or the next weaker one of those that were learnt; `learnt` is null where that is not known.
export function knownMark(word, learnt) {
  if (!learnt) return word.mark;
  let mark = word.mark || (word.pause === "(" ? "," : "");
  while (mark && !learnt.includes(mark)) mark = phonemes.WEAKER[mark];
  return mark;
}
