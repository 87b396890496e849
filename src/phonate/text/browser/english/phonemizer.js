// The phonemizer `english`: American English as ARPAbet with stress digits. Words are {text, phones, mark, pause}.

import {isVowel} from "phonate/arpabet";
import * as derivation from "phonate/derivation";
import {chooseHomograph, entry} from "phonate/lexicon";
import {markOf, pauseOf} from "phonate/marks";
import {endOf, get, matches} from "phonate/matching";
import {normalise} from "phonate/normalisation";
import {lexicon as lexiconRules, phonemizer as rules} from "phonate/rules";

const {HOMOGRAPHS} = lexiconRules;
const {ACRONYMS, LETTERED, PREFIXES, STRONG, TOKEN, WEAK} = rules;

// The words of `text`; none if nothing in it can be pronounced.
export function english(text) {
  const tokens = tokensOf(normalise(text)), words = [];
  for (let n = tokens.length - 1; n >= 0; n--) { // backwards, because a weak form depends on the word after it
    const token = tokens[n], following = token.mark ? null : words.at(-1) ?? null;
    const before = n && !tokens[n - 1].mark ? tokens[n - 1].text.toLowerCase() : "";
    const {text, mark, pause} = token;
    words.push({text, phones: inContext(token, before, following), mark, pause});
  }
  return words.reverse();
}

// The words of a normalised text: {text, mark, pause, spelt, hyphen}.
function tokensOf(text) {
  const shouted = !/[a-z]/.test(text) && (text.match(/[A-Z]{2,}/g) ?? []).length > 1;
  const found = matches(TOKEN, text);
  const tokens = found.map((match, n) => {
    const last = n + 1 === found.length, spelt = /\.$|\.'?s$/.test(match[0]);
    let between = text.slice(endOf(match), last ? text.length : found[n + 1].index);
    if (spelt && last) between = `.${between}`; // its full stop also ends the text
    const hyphen = between === "-" && !last;
    if (hyphen) between = ""; // it is not a pause
    const word = spelt ? match[0] : unquoted(match[0]);
    const lowered = shouted && !spelt && !ACRONYMS.has(word) && entry(word.toLowerCase());
    return {text: lowered ? word.toLowerCase() : word, mark: markOf(between), pause: pauseOf(between), spelt, hyphen};
  });
  return tokens.filter(token => token.text);
}

// `word` without quotes around it; apostrophes that belong to it stay.
function unquoted(word) {
  if (word.startsWith("'") && !entry(word.toLowerCase().replace(/'+$/, ""))) word = word.slice(1);
  if (word.endsWith("'") && !/(?:[sS]|in)'$/.test(word)) word = word.slice(0, -1);
  return word;
}

// The phones of a word in its context; `following` is null before a pause.
function inContext(token, before, following) {
  const word = token.text.toLowerCase();
  if (token.spelt || (word === "a" && token.text === "A" && LETTERED.has(before))) return spelt(word);
  if (token.hyphen && get(PREFIXES, word)) return PREFIXES[word];
  if (get(WEAK, word)) {
    if (following === null) return STRONG[word];
    return word === "the" && isVowel(following.phones[0]) ? ["DH", "IY0"] : WEAK[word];
  }
  const found = entries(token.text);
  if (found && Object.keys(found).length > 1) {
    return chooseHomograph(word, found, before, following ? following.text.toLowerCase() : "");
  }
  return pronounce(token.text);
}

// The lexicon's pronunciations of `word` by part of speech, in any capitalisation; null for other words.
function entries(word) {
  const lower = word.toLowerCase(), capitalised = lower.slice(0, 1).toUpperCase() + lower.slice(1);
  const own = get(HOMOGRAPHS, lower);
  if (own) return own;
  for (const checked of [true, false]) {
    for (const spelling of [word, lower, capitalised]) {
      const found = entry(spelling, checked);
      if (found) return found;
    }
  }
  return null;
}

const lookup = word => entries(word)?.DEFAULT ?? null;

// Like `lookup`, but of a homograph the verb: "lived" comes from the verb.
const lookupVerb = word => entries(word)?.VERB ?? lookup(word);

// The names of the letters; a final 's is a plural.
function spelt(word) {
  const several = /\.'?s$|'s$/.test(word);
  const letters = (several ? word.replace(/'?s$/, "") : word).replace(/[^a-z]/g, "");
  const phones = [...letters].flatMap(letter => entry(letter.toUpperCase()).DEFAULT);
  return several && phones.length ? derivation.plural(phones) : phones;
}

// The phones of one word by itself, in its dictionary form.
export function pronounce(word) {
  const found = known(word) ?? derivation.pronounceByRules(word);
  return found.length ? found : spelt(word.toLowerCase());
}

function known(word) {
  const lower = word.toLowerCase(), capitals = /^([A-Z]{2,})('?s)?$/.exec(word);
  if (capitals) {
    const asWord = !ACRONYMS.has(capitals[1]) && (entry(capitals[1], true) || entry(lower, true));
    if (!asWord && (capitals[1].length < 6 || !/[AEIOUY]/.test(capitals[1]))) {
      return spelt(capitals[1].toLowerCase() + (capitals[2] ? "'s" : ""));
    }
  }
  if (lower.length === 1) return spelt(lower);
  const found = lookup(word);
  if (found) return found;
  if (!/[aeiouy]/.test(lower) && lower.length <= 6) return spelt(lower);
  return derivation.derive(lower, lookup, lookupVerb) ?? pieces(word);
}

// CamelCase by its parts, and words with repeated letters ("sooo") without the repetition.
function pieces(word) {
  const parts = word.match(/[A-Z]+(?![a-z])|[A-Z]?[a-z']+/g) ?? [];
  if (parts.length > 1 && (parts[0] === "Mc" || parts[0] === "Mac")) {
    return ["M", "AH0", "K", ...pronounce(parts.slice(1).join(""))];
  }
  if (parts.length > 1 && parts.every(part => part.replaceAll("'", ""))) return parts.flatMap(pronounce);
  for (const kept of ["$1", "$1$1"]) {
    const shorter = word.toLowerCase().replace(/([a-z])\1{2,}/g, kept);
    const found = shorter !== word.toLowerCase() ? lookup(shorter) : null;
    if (found) return found;
  }
  return null;
}
