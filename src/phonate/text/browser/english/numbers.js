// Numbers in English words.

import {fullMatch} from "phonate/matching";
import {numbers} from "phonate/rules";

const {LARGEST, ROMAN} = numbers;
const SMALL = (
  "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen " +
  "eighteen nineteen"
).split(" ");
const TENS = ", , twenty thirty forty fifty sixty seventy eighty ninety".split(" ");
const SCALES = ["", " thousand", " million", " billion", " trillion"];
const ORDINALS = {
  one: "first", two: "second", three: "third", five: "fifth", eight: "eighth", nine: "ninth", twelve: "twelfth",
};
const VALUES = {I: 1, V: 5, X: 10, L: 50, C: 100};

function belowThousand(number) {
  const hundreds = Math.floor(number / 100), rest = number % 100, words = [];
  if (hundreds) words.push(`${SMALL[hundreds]} hundred`);
  if (rest && rest < 20) words.push(SMALL[rest]);
  if (rest >= 20) words.push(TENS[Math.floor(rest / 10)] + (rest % 10 ? `-${SMALL[rest % 10]}` : ""));
  return words.join(" ");
}

function words(digits) {
  const groups = [];
  for (let end = digits.length; end > 0; end -= 3) groups.push(Number(digits.slice(Math.max(0, end - 3), end)));
  const said = groups.map((group, scale) => group ? belowThousand(group) + SCALES[scale] : "").filter(Boolean);
  return said.reverse().join(" ") || "zero";
}

// "1,234" -> "one thousand two hundred thirty-four"; leading zeros and very long numbers digit by digit.
export function cardinal(digits) {
  digits = digits.replaceAll(",", "");
  if (digits.length > LARGEST || (digits.length > 1 && digits[0] === "0")) return byDigit(digits);
  return words(digits);
}

// "105" -> "one zero five".
export const byDigit = digits => [...digits].filter(digit => /\d/.test(digit)).map(digit => SMALL[digit]).join(" ");

// "21" -> "twenty-first".
export function ordinal(digits) {
  const said = cardinal(digits), last = said.split(/[ -]/).at(-1);
  const name = ORDINALS[last] ?? (last.endsWith("y") ? `${last.slice(0, -1)}ieth` : `${last}th`);
  return said.slice(0, said.length - last.length) + name;
}

// A cardinal or a decimal: "3.14" -> "three point one four".
export function number(text) {
  const at = text.indexOf(".");
  if (at < 0) return cardinal(text);
  return (at ? `${cardinal(text.slice(0, at))} ` : "") + `point ${byDigit(text.slice(at + 1))}`;
}

// "1984" -> "nineteen eighty-four", "2005" -> "two thousand five", "1906" -> "nineteen oh six".
export function year(digits) {
  const century = digits.slice(0, 2), rest = digits.slice(2);
  if (digits.slice(1, 3) === "00") return cardinal(digits);
  return rest === "00" ? `${cardinal(century)} hundred` : `${cardinal(century)} ${pair(rest)}`;
}

// Two digits after others: "05" -> "oh five", "45" -> "forty-five".
export const pair = digits => digits[0] === "0" ? `oh ${cardinal(digits[1])}` : cardinal(digits);

// The plural of number words: "eighty" -> "eighties".
export const plural = said => said.endsWith("y") ? `${said.slice(0, -1)}ies` : said + (said.endsWith("x") ? "es" : "s");

// "3", "4" -> "three quarters"; "7" over a number above 100 -> "seven over ...".
export function fraction(top, bottom) {
  const over = Number(top), under = Number(bottom);
  let name;
  if (bottom === "2") name = "half";
  else if (bottom === "4") name = "quarter";
  else if (under > 2 && under <= 100 && !(over >= under && under > 10)) name = ordinal(bottom);
  else return `${cardinal(top)} over ${cardinal(bottom)}`;
  const many = name === "half" ? "halves" : `${name}s`;
  return `${cardinal(top)} ${over === 1 ? name : many}`;
}

// The value of a Roman numeral below 400; null for anything else.
export function roman(numeral) {
  if (!fullMatch(ROMAN, numeral)) return null;
  const values = [...numeral].map(letter => VALUES[letter]);
  return values.reduce((total, value, n) => total + (value < (values[n + 1] ?? 1) ? -value : value), 0);
}
