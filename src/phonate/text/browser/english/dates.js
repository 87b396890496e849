// Dates, times of day and years in words.

import {sub} from "phonate/matching";
import {cardinal, ordinal, pair, plural, year} from "phonate/numbers";
import {dates as rules} from "phonate/rules";

const unpadded = digits => String(Number(digits));
const month = name => rules.SHORT[name.replace(/\.+$/, "")] ?? name;
const day = digits => digits >= 1 && digits <= 31 ? ordinal(unpadded(digits)) : null;
const halfDay = letter => letter ? ` ${letter.toUpperCase()}.M.` : "";
const lastYear = last => last.length === 4 ? year(last) : pair(last);

// "1", "3" -> "first to third"; null for what is no day or no span of days.
function days(first, last) {
  const begin = day(first), end = day(last ?? first);
  if (begin === null || end === null || (last && Number(last) <= Number(first))) return null;
  return last ? `${begin} to ${end}` : begin;
}

function anyYear(digits) {
  if (digits.length === 2) digits = (digits < 70 ? "20" : "19") + digits;
  return digits[0] !== "0" ? year(digits) : cardinal(digits);
}

function numeric(monthNumber, dayNumber, digits) {
  const said = day(dayNumber);
  if (said === null || monthNumber < 1 || monthNumber > 12) return null;
  return `${rules.MONTHS[monthNumber - 1]} ${said}, ${anyYear(digits)}`;
}

// The month first, as in America, unless it can be no month.
function slashed(found) {
  return numeric(found[1], found[2], found[3]) ?? numeric(found[2], found[1], found[3]) ?? found[0];
}

function monthFirst(found) {
  const said = days(found[2], found[3]);
  return said === null ? found[0] : `${month(found[1])} ${said}` + (found[4] ? `, ${anyYear(found[4])}` : "");
}

function dayFirst(found) {
  const said = days(found[2], found[3]);
  if (said === null) return found[0];
  return `${found[1] || "the "}${said} of ${month(found[4])}` + (found[5] ? `, ${anyYear(found[5])}` : "");
}

function decade(found) {
  if (found[1]) return plural(year(found[1] + found[2]));
  return found[2] !== "00" ? plural(cardinal(found[2])) : found[0];
}

function clock(found) {
  const hour = cardinal(unpadded(found[1])), minute = found[2], second = found[3], half = halfDay(found[4]);
  let said = minute !== "00" ? `${hour} ${pair(minute)}` : half ? hour : `${hour} o'clock`;
  if (found[1] === "00" || found[1] === "0") said = minute !== "00" ? `zero ${pair(minute)}` : "zero hours";
  if (second && second !== "00") {
    said += ` and ${cardinal(unpadded(second))} second${Number(second) !== 1 ? "s" : ""}`;
  }
  return said + half;
}

// `text` with dates and times in words.
export function expand(text) {
  text = sub(rules.ISO, found => numeric(found[2], found[3], found[1]) ?? found[0], text);
  text = sub(rules.DASHED, slashed, sub(rules.SLASHED, slashed, text));
  text = sub(rules.DAY_FIRST, dayFirst, text);
  text = sub(rules.MONTH_FIRST, monthFirst, text);
  text = sub(rules.MONTH_YEAR, found => `${month(found[1])} ${anyYear(found[2])}`, text);
  text = sub(rules.YEARS, found => `${year(found[1])} to ${lastYear(found[2])}`, text);
  text = sub(rules.HOURS, "\\1 to ", text);
  text = sub(rules.CLOCK, clock, text);
  text = sub(rules.HOUR, found => cardinal(unpadded(found[1])) + halfDay(found[2]), text);
  text = sub(rules.SHORT_DECADE, found => found[1] !== "0" ? plural(cardinal(`${found[1]}0`)) : "two thousands", text);
  return sub(rules.DECADE, decade, text);
}

// `text` with remaining years in words; called last, because other patterns have four-digit numbers too.
export function expandYears(text) {
  text = sub(rules.YEAR, found => year(found[1]), sub(rules.GLUED_YEAR, " ", text));
  text = sub(rules.EARLY_YEAR, found => year(found[1]), text);
  return sub(rules.SHORT_YEAR, found => pair(found[1]), text);
}
