// Phonemizers: functions from a text to its words, {text, phones, mark, pause}; no words if nothing in it can be pronounced.

import {characters} from "phonate/characters";
import {english} from "phonate/phonemizer";
import {normalise} from "phonate/normalisation";
import {phonemes as rules} from "phonate/rules";

// The phonemizer of an inventory, as the document that Python writes. That of English needs the lexicon and the rules.
export function phonemizerOf({phonemizer, language, symbols}) {
  if (phonemizer === "english") return english;
  const dotless = /^(tr|az)([-_]|$)/i.test(language);  // their I is no i
  const composed = text => text.normalize("NFKC");
  const other = dotless ? text => composed(text).replaceAll("I\u0307", "i").replaceAll("İ", "i").replaceAll("I", "ı") : composed;
  const prepare = /^en([-_]|$)/i.test(language) ? normalise : other;
  return characters(symbols.slice(rules.SPECIAL.length), prepare);
}

// The symbols of a sentence: START, then the phones of each word followed by a boundary.
export const tokensOf = words => [
  rules.START, ...words.flatMap(word => [...word.phones, word.mark || rules.WORD]),
];
