// Phonemizers: functions from a text to its words, {text, phones, mark, pause}; no words if nothing in it can be pronounced.

import {characters} from "phonate/characters";
import {english} from "phonate/phonemizer";
import {normalise} from "phonate/normalisation";
import {phonemes as rules} from "phonate/rules";

// The phonemizer of an inventory, as the document that Python writes. That of English needs the lexicon and the rules.
export function phonemizerOf({phonemizer, language, symbols}) {
  if (phonemizer === "english") return english;
  const prepare = /^en([-_]|$)/i.test(language) ? normalise : text => text.normalize("NFKC");
  return characters(symbols.slice(rules.SPECIAL.length), prepare);
}

// The symbols of a sentence: START, then the phones of each word followed by a boundary.
export const tokensOf = words => [
  rules.START, ...words.flatMap(word => [...word.phones, word.mark || rules.WORD]),
];
