// English abbreviations and Roman numerals, written out.

import {endOf, matchAt, search, sub} from "phonate/matching";
import {cardinal, ordinal, roman} from "phonate/numbers";
import {abbreviations as rules} from "phonate/rules";

const PAUSES = ["", ".", ",", ";", ":", "'", ")", "?", "!"];

// "." if the abbreviation that ends at `at` also ends a sentence: its full stop then had both meanings.
const sentenceEnd = (text, at) => matchAt(rules.END, text, at) ? "." : "";

function word(found) {
  const short = found[1], text = found.input, before = text.slice(0, found.index);
  const nearNumber = /^\s*\d/.test(text.slice(endOf(found))) || /\d\s*$/.test(before);
  if (rules.NAMES.has(short) && !nearNumber) return found[0];
  const capital = /[A-Z]/.test(short[0]) && found.index > 0;
  const asWord = rules.ALSO_WORDS.has(short.toLowerCase()) && !nearNumber && !capital;
  if (asWord && !(short.toLowerCase() === "al" && before.endsWith("et "))) return found[0];
  return rules.WORDS[short.toLowerCase()] + sentenceEnd(text, endOf(found));
}

function streetOrSaint(text) {
  const street = found => "Street" + (found[1] ? sentenceEnd(found.input, endOf(found)) : "");
  const saint = found => search(rules.STREET_BEFORE, found.input.slice(0, found.index)) ? found[0] : "Saint";
  return sub(rules.STREET, street, sub(rules.SAINT, saint, text));
}

const drive = found => `${found[1]} Drive` + (found[2] ? sentenceEnd(found.input, endOf(found)) : "");

function king(found) {
  const value = roman(found[2]), after = found.groups.after;
  const lone = ["I", "V", "X"].includes(found[2]) && !PAUSES.includes(after); // "and John I think"
  return value === null || lone || found[2] === "L" ? found[0] : `${found[1]} the ${ordinal(String(value))}${after}`;
}

function part(found) {
  const value = roman(found[3]), word = found[1][0] + found[1].slice(1).toLowerCase();
  const letter = ["C", "L"].includes(found[3]) || (["V", "X"].includes(found[3]) && rules.LETTERED.has(word));
  if (value === null || letter) return found[0];
  if (found[3] === "I" && word !== "War" && rules.VERBS.has(found[4])) return found[0]; // "In Part I think"
  return `${found[1]} ${cardinal(String(value))}`;
}

const weekend = found => rules.WEEKEND[found[1]] + sentenceEnd(found.input, endOf(found));

const title = found => found[2] || rules.PLAIN.has(found[1]) ? rules.TITLES[found[1]] : found[0];

// `text` with abbreviations written out.
export function expand(text) {
  for (const [pattern, words] of rules.LATIN) text = sub(pattern, words, text);
  text = sub(rules.HALF_DAY, found => `${found[1].toUpperCase()}.M.`, text);
  text = sub(rules.KING, king, text);
  text = sub(rules.PART, part, text);
  text = sub(rules.DRIVE, drive, text);
  text = sub(rules.DOCTOR, "Doctor", text);
  text = streetOrSaint(text);
  text = sub(rules.TITLE, title, text);
  text = sub(rules.TITLE_ANYWHERE, found => rules.TITLES[found[1]], text);
  text = sub(rules.NUMBERED, found => found[1].toLowerCase() === "nos" ? "numbers " : "number ", text);
  text = sub(rules.PAGE, "page ", text);
  text = sub(rules.DATED, found => rules.WEEK[found[1]] ?? rules.WEEKEND[found[1]], text);
  text = sub(rules.SUNDAY, weekend, sub(rules.SATURDAY, weekend, text));
  return sub(rules.WORD, word, text);
}
