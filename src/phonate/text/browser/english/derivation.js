// Pronunciations of words that are not in the lexicon: derived from words that are (inflections, suffixes, prefixes and
// compounds), or by letter-to-sound rules.
// `lookup` gives the phones of a word in the lexicon, null for others; `verb` prefers the verb among several.

import {isVowel} from "phonate/arpabet";
import {split} from "phonate/matching";
import {derivation as rules} from "phonate/rules";

const {CONTRACTIONS, LONG, LONGEST, OFFSETS, PREFIXES, SHORTEST_PART, SIBILANT, VOICELESS} = rules;
const ENDINGS = [...rules.ENDINGS].sort((one, other) => other[0].length - one[0].length);

const endsIn = (word, ...endings) => endings.some(ending => word.endsWith(ending));

// `stem` with the -s of plurals, verbs and possessives: S, Z or IH0 Z.
export function plural(stem) {
  if (SIBILANT.has(stem.at(-1))) return [...stem, "IH0", "Z"];
  return [...stem, VOICELESS.has(stem.at(-1)) ? "S" : "Z"];
}

// `stem` with -ed: T, D or IH0 D.
function past(stem) {
  if (["T", "D"].includes(stem.at(-1))) return [...stem, "IH0", "D"];
  return [...stem, VOICELESS.has(stem.at(-1)) ? "T" : "D"];
}

// Possible spellings of the stem `base` without its suffix: itself, with e, undoubled, with y.
function stems(base, ending) {
  const found = [];
  if (/^[aeioy]/.test(ending)) {
    if (/([bdgklmnprtz])\1$/.test(base)) found.push(base.slice(0, -1));
    if (/[aeiou][bdgklmnprtvz]$|[csvuzg]$|[^l]l$/.test(base)) found.push(`${base}e`);
    found.push(base, `${base}e`);
  } else {
    found.push(base);
  }
  if (base.endsWith("i")) found.push(`${base.slice(0, -1)}y`);
  if (ending === "ily" || ending === "iest") found.push(`${base}y`);
  return found;
}

function first(words, lookup) {
  for (const word of words) {
    const phones = word.length > 1 ? lookup(word) : null;
    if (phones) return phones;
  }
  return null;
}

// Possessives and contractions.
function apostrophe(word, lookup) {
  let stem;
  if (word.endsWith("'s") && (stem = lookup(word.slice(0, -2)))) return plural(stem);
  if (word.endsWith("s'") && (stem = lookup(word.slice(0, -1)))) return stem;
  if (word.endsWith("'d") && (stem = lookup(word.slice(0, -2)))) {
    return ["T", "D"].includes(stem.at(-1)) ? [...stem, "IH0", "D"] : [...stem, "D"];
  }
  for (const [ending, phones] of Object.entries(CONTRACTIONS)) {
    if (word.endsWith(ending) && (stem = lookup(word.slice(0, -ending.length)))) {
      const short = isVowel(stem.at(-1)) && phones[0] === "AH0" && ending !== "n't";
      return [...stem, ...(short ? phones.slice(1) : phones)];
    }
  }
  return null;
}

function inflected(word, lookup, verb) {
  if (word.endsWith("s") && !endsIn(word, "ss", "us", "is")) {
    const possible = [word.slice(0, -1)];
    if (word.endsWith("ies")) possible.push(`${word.slice(0, -3)}y`);
    if (/(?:[sxzo]|ch|sh)es$/.test(word)) possible.push(word.slice(0, -2));
    const stem = first(possible, lookup);
    if (stem) return plural(stem);
  }
  const stem = word.endsWith("ed") && word.length > 4 ? first(stems(word.slice(0, -2), "ed"), verb) : null;
  return stem ? past(stem) : null;
}

// A stem with a suffix, the longest that leaves a word.
function ended(word, lookup, verb) {
  for (const [ending, phones] of ENDINGS) {
    const base = word.slice(0, -ending.length);
    if (!word.endsWith(ending) || base.length < 3) continue;
    const stem = first(stems(base, ending), /^(?:in|ed|er)/.test(ending) ? verb : lookup);
    if (!stem) continue;
    let joined = stem.at(-1) === "L" && phones[0] === "L" ? stem.slice(0, -1) : stem;
    if (ending === "ly" && stem.slice(-2).join(" ") === "AH0 L" && base.endsWith("le")) joined = stem.slice(0, -2);
    return [...joined, ...phones];
  }
  return null;
}

// `phones` with primary stress reduced to secondary.
const secondary = phones => phones.map(phone => phone.replace(/1$/, "2"));

// A prefix and a word, or two words.
function composed(word, lookup) {
  const restOf = rest => lookup(rest) ?? inflected(rest, lookup, lookup);
  for (const [prefix, phones] of PREFIXES) {
    const rest = word.slice(prefix.length);
    const stem = word.startsWith(prefix) && rest.length >= SHORTEST_PART ? restOf(rest) : null;
    if (stem) return [...phones, ...stem];
  }
  const places = [];
  for (let at = SHORTEST_PART; at <= word.length - SHORTEST_PART; at++) places.push(at);
  const fromMiddle = at => Math.abs(2 * at - word.length);
  for (const at of places.sort((one, other) => fromMiddle(one) - fromMiddle(other))) {
    const one = lookup(word.slice(0, at)), other = restOf(word.slice(at));
    if (one && other) return [...one, ...secondary(other)];
  }
  return null;
}

// The phones of `word` (lower case), derived from words that `lookup` knows; null if there is no derivation.
export function derive(word, lookup, verb) {
  if (word.includes("'") && !word.endsWith("in'")) {
    return apostrophe(word, stem => stem ? lookup(stem) ?? derive(stem, lookup, verb) : null);
  }
  return inflected(word, lookup, verb) ?? ended(word, lookup, verb) ?? composed(word, lookup);
}

// Letter-to-sound rules: letters in context -> ARPAbet phones.

let contexts = null, stress = null;

// `found`: the document of letter_to_sound.json.
export function setLetterToSound(found) {
  [contexts, stress] = [found.contexts, found.stress].map(
    table => new Map(Object.entries(table).flatMap(([label, keys]) => split(keys).map(key => [key, label]))),
  );
}

// The LONGEST letters around `word[place]`, nearest first, "#" beyond the ends.
const context = (word, place) => OFFSETS.map(n => word[place + n] ?? "#").join("");

// The value of the longest prefix of `key` in `table`; "" if there is none.
function longestMatch(table, key) {
  for (let length = key.length; length > 0; length--) {
    const value = table.get(key.slice(0, length));
    if (value !== undefined) return value;
  }
  return "";
}

// The phones of `word` (letters a to z; other characters are skipped) with one primary stress.
export function pronounceByRules(word) {
  word = word.toLowerCase().replace(/[^a-z]/g, "");
  const phones = [];
  for (let place = 0; place < word.length; place++) {
    for (const phone of split(longestMatch(contexts, word[place] + context(word, place)))) {
      if (phones.at(-1) !== phone) phones.push(phone); // "tt" is one T, whatever the rule for each t
    }
  }
  return stressed(word, withAVowel(word, phones));
}

// `phones` with at least one vowel, if `word` has vowel letters.
function withAVowel(word, phones) {
  if (!phones.length || phones.some(isVowel) || !/[aeiouy]/.test(word)) return phones;
  const at = phones.indexOf("R", 1);
  if (at > 0) return [...phones.slice(0, at), "ER", ...phones.slice(at + 1)];
  return [phones[0], "AH", ...phones.slice(1)];
}

// `phones` with stress digits.
function stressed(word, phones) {
  const vowels = phones.map((_, n) => n).filter(n => isVowel(phones[n]));
  if (!vowels.length) return phones;
  const ending = [...word].reverse().join("").slice(0, LONGEST).padEnd(LONGEST, "#");
  const fromEnd = Number(longestMatch(stress, String(Math.min(vowels.length, 9)) + ending) || 0);
  const primary = vowels.length - 1 - Math.min(fromEnd, vowels.length - 1);
  return phones.map((phone, place) => {
    const n = vowels.indexOf(place);
    if (n < 0) return phone;
    return phone + (n === primary ? "1" : LONG.has(phone) && Math.abs(n - primary) > 1 ? "2" : "0");
  });
}
