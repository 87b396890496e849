// Letter-to-sound rules for words that are not in the lexicon: letters in context -> ARPAbet phones.

import {split} from "phonate/matching";
import {letter_to_sound as rules} from "phonate/rules";
import {isVowel} from "phonate/arpabet";

const {LONG, LONGEST, OFFSETS} = rules;
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
