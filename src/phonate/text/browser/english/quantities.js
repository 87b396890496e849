// Money, measures, fractions, telephone numbers and plain numbers in words.

import {endOf, get, split, sub} from "phonate/matching";
import {byDigit, cardinal, fraction, number, ordinal, plural} from "phonate/numbers";
import {quantities as rules} from "phonate/rules";

const IRREGULAR = {foot: "feet", penny: "pence", paisa: "paise", inch: "inches"};

const sign = written => ({"-": "minus ", "+": "plus "})[written] ?? "";
const scale = (word, letters) => word || (letters ? rules.SCALES[letters.toLowerCase()] : null);
const digitGroups = text => (text.match(/\d+/g) ?? []).map(byDigit).join(", ");
const allZeros = digits => !digits.replaceAll("0", "");

// "1", "foot" -> "one foot"; "3", "mile per hour" -> "three miles per hour".
const count = (digits, name) => `${number(digits)} ${digits === "1" ? name : pluralUnit(name)}`;

function pluralUnit(name) {
  const space = name.indexOf(" "), first = space < 0 ? name : name.slice(0, space), rest = name.slice(first.length);
  if (["square", "cubic", "kilowatt"].includes(first)) return `${first} ${pluralUnit(rest.slice(1))}`;
  if (first.endsWith("hertz") || ["yen", "sen", "percent"].includes(first)) return name;
  return (IRREGULAR[first] ?? plural(first)) + rest;
}

function money(signed, symbol, digits, scaled) {
  const [name, small] = rules.MONEY_NAMES[symbol], [whole, cents = ""] = digits.replaceAll(",", "").split(".");
  if (scaled) return `${sign(signed)}${number(digits)} ${scaled} ${pluralUnit(name)}`;
  if (cents.length !== 2 || !small) return sign(signed) + count(digits, name);
  const parts = [];
  if (Number(whole) || !Number(cents)) parts.push(count(String(Number(whole)), name));
  if (Number(cents)) parts.push(count(String(Number(cents)), small));
  return sign(signed) + parts.join(" and ");
}

function phone(found) {
  const plus = found[0].startsWith("+") ? "plus " : "";
  if (!found[2] && found[1] && !plus) return found[0]; // "12 345-6789" is not a telephone number
  return plus + digitGroups(found[0]);
}

const feet = found => `${count(found[1], "foot")} ${count(found[2], "inch")}`;

function over(found) {
  return allZeros(found[2]) ? `${cardinal(found[1])} over ${cardinal(found[2])}` : fraction(found[1], found[2]);
}

// 1/2 tsp -> one half teaspoon; 3/4 mi -> three quarters of a mile; 1 1/2 h -> one and one half hours.
// 5 1/2% -> five and a half percent.
function partOf(found) {
  const [signed, whole, above, under, unit] = found.slice(1);
  if (allZeros(under) || allZeros(above)) return found[0];
  const part = fraction(above, under), name = rules.UNITS[unit];
  const half = unit === "%" && part === "one half" ? "a half" : part;
  if (whole) return `${sign(signed)}${cardinal(whole)} and ${half} ${pluralUnit(name)}`;
  const article = /^(?:[aeio]|hour)/.test(name) ? "an" : "a";
  return sign(signed) + (above === "1" ? `${part} ${name}` : `${part} of ${article} ${name}`);
}

// `text` with quantities in words, but not plain numbers.
export function expand(text) {
  text = sub(rules.INTERNATIONAL, found => `plus ${digitGroups(found[0])}`, text);
  text = sub(rules.PHONE, phone, text);
  text = sub(rules.DOMESTIC, found => split(found[0]).map(byDigit).join(", "), text);
  text = sub(rules.GROUPS, found => digitGroups(found[0]), text);
  text = sub(rules.FEET_AND_INCHES, feet, sub(rules.FEET, feet, text));
  text = sub(rules.RANGE, "\\1 to ", sub(rules.RANGE_OF_MEASURES, "\\1 to ", text));
  text = sub(rules.MONEY_BEFORE, found => money(found[1], found[2], found[3], scale(found[4], found[5])), text);
  text = sub(rules.MONEY_AFTER, found => money(found[1], found[5], found[2], scale(found[3], found[4])), text);
  text = sub(rules.PART_OF, partOf, text);
  text = sub(rules.PERCENT, found => `${sign(found[1])}${number(found[2])} percent`, text);
  text = sub(
    rules.MIXED,
    found => allZeros(found[3]) ? found[0] : `${cardinal(found[1])} and ${fraction(found[2], found[3])}`,
    text,
  );
  text = sub(rules.MEASURE, found => sign(found[1]) + count(found[2], rules.UNITS[found[4]]), text);
  text = sub(rules.PER, found => ` per ${get(rules.UNITS, found[1]) ?? found[1]}`, text);
  text = sub(rules.RATIO, "\\1 to ", text);
  text = sub(rules.FRACTION, over, text);
  return sub(rules.ORDINAL, found => ordinal(found[1]), text);
}

// `text` with the remaining numbers in words.
export function expandPlain(text) {
  text = sub(rules.DOTTED, found => found[0].split(".").map(cardinal).join(" point "), text);
  return sub(rules.BIG, plain, text);
}

function plain(found) {
  const isLetter = character => /[A-Za-z]/.test(character ?? "");
  const before = isLetter(found.input[found.index - 1]) ? " " : "";
  const after = isLetter(found.input[endOf(found)]) ? " " : "";
  return `${before}${sign(found[1])}${number(found[2])}${after}`;
}
