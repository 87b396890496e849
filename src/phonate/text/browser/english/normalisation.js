// Text normalisation: written English to spoken words.

import * as abbreviations from "phonate/abbreviations";
import * as dates from "phonate/dates";
import {get, matches, sub} from "phonate/matching";
import * as quantities from "phonate/quantities";
import {normalisation as rules} from "phonate/rules";

const sayable = new Set(rules.SAYABLE);
const known = new Map();

// `text` as English words and punctuation, in ASCII.
export function normalise(text) {
  const pieces = matches(rules.CHUNK, plain(text).trim()).map(found => found[0]);
  return pieces.map(fixedPoint).join("").replace(/\s+/g, " ").trim();
}

// `text` after passes until nothing changes: a pass may bring letters together that read as an abbreviation.
function fixedPoint(text) {
  const blank = text.slice(text.trimEnd().length);
  for (let passes = 0; passes < rules.PASSES; passes++) {
    const once = pass(text);
    if (once === text) break;
    text = once;
  }
  return text + blank;
}

function pass(text) {
  text = readAddresses(text);
  for (const [pattern, words] of rules.FIRST) text = sub(pattern, words, text);
  text = dates.expand(text);
  text = quantities.expand(text);
  text = abbreviations.expand(text);
  text = quantities.expandPlain(dates.expandYears(text));
  text = sub(rules.SYMBOL, found => ` ${rules.SYMBOLS[found[0]]} `, text);
  for (const [pattern, words] of rules.TIDY) text = sub(pattern, words, text);
  return text.trim();
}

// Characters of any script -> ASCII (and £ € ¥ ₹ ¢ °); what has no English pronunciation becomes a space.
function plain(text) {
  for (const [pattern, words] of rules.IN_CONTEXT) text = sub(pattern, words, text);
  return [...text].map(character => {
    if (!known.has(character)) known.set(character, spelt(character));
    return known.get(character) ?? " ";
  }).join("");
}

function spelt(character) {
  const replacement = get(rules.BEFORE_NFKC, character);
  if (replacement !== undefined) return replacement;
  if (sayable.has(character)) return character;
  if (/[\p{Cf}\p{Mn}\p{Me}]/u.test(character)) return "";
  if (/[\s\p{Cc}]/u.test(character)) return " ";
  if (/\p{Nd}/u.test(character)) return digit(character);
  const compatible = character.normalize("NFKD");
  if (compatible.includes(rules.NOT)) return null; // without the mark it would mean the opposite
  if (/\p{No}/u.test(character) && compatible.includes("⁄")) return ` ${compatible.replaceAll("⁄", "/")}`; // 3½
  if (compatible !== character) {
    const pieces = [...compatible].map(spelt);
    return pieces.includes(null) ? null : pieces.join("");
  }
  return get(rules.GREEK, character) ?? null;
}

// The value of a decimal digit of any script: they come in runs of ten.
function digit(character) {
  let start = character.codePointAt(0);
  while (/\p{Nd}/u.test(String.fromCodePoint(start - 1))) start--;
  return String((character.codePointAt(0) - start) % 10);
}

// "ann@example.com" -> "ann at example dot com".
function readAddresses(text) {
  return sub(rules.WEB, web, sub(rules.EMAIL, found => said(found[0]), text));
}

function web(found) {
  const address = sub(rules.BEGIN, "", found[0]), kept = address.replace(/[.,;:!?/]+$/, "");
  return said(kept) + address.slice(kept.length).replace(/^\/+/, "");
}

function said(address) {
  const pieces = address.replace(/^www\b/i, "w w w").match(/[A-Za-z]+|\d+|[^\w\s]|_|\s/g) ?? [];
  const words = pieces.map(piece => /^\d/.test(piece) ? [...piece].join(" ") : get(rules.NAMES, piece) ?? piece);
  return words.join(" ").replace(/\s+/g, " ").trim();
}
