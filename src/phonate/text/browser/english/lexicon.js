// The English lexicon, in ARPAbet, and which pronunciation of a homograph is meant.

import {get, split} from "phonate/matching";
import {lexicon as rules} from "phonate/rules";

const {BEFORE_IMPERATIVE, BEFORE_NOUN, BEFORE_PARTICIPLE, BEFORE_THIRD_PERSON, BEFORE_VERB} = rules;
const {BEHIND_IMPERATIVE, LIVE, METAL} = rules;
let tables = null;

// `found`: the document of lexicon.json.
export function setLexicon(found) {
  tables = found;
}

// The pronunciations of exactly this spelling by part of speech (DEFAULT first); null if there are none. `checked`
// looks only into the half that was checked by hand.
export function entry(word, checked = false) {
  const name = get(rules.NAMES, word);
  if (name) return {DEFAULT: name};
  const found = get(tables.checked, word) || (checked ? undefined : get(tables.unchecked, word));
  if (found === undefined) return null;
  if (typeof found === "string") return {DEFAULT: split(found)};
  return Object.fromEntries(Object.entries(found).map(([tag, phones]) => [tag, split(phones)]));
}

// The pronunciation of `word` among `entries` (part of speech -> phones), given its lower-case neighbours.
export const chooseHomograph = (word, entries, before, after) => get(entries, tag(word, entries, before, after)) ?? entries.DEFAULT;

function tag(word, entries, before, after) {
  if (word === "lead") return METAL.has(after) || before === "of" ? "NOUN" : "DEFAULT";
  if ("VERB" in entries && (!before || BEFORE_IMPERATIVE.has(before)) && BEHIND_IMPERATIVE.has(after)) return "VERB";
  if (word === "used") return after === "to" && !BEFORE_PARTICIPLE.has(before) ? "VBD" : "DEFAULT";
  if (word === "read" || word === "wound") {
    const past = ["he", "she", "it"].includes(before) || (word === "read" && BEFORE_PARTICIPLE.has(before));
    return past ? "VBD" : "DEFAULT";
  }
  if (word === "live") return BEFORE_NOUN.has(before) || LIVE.has(after) ? "DEFAULT" : "VERB";
  if (word === "lives") return BEFORE_THIRD_PERSON.has(before) ? "VERB" : "DEFAULT";
  if (word === "close") {
    return BEFORE_VERB.has(before) ? "VERB" : before === "the" && after === "of" ? "NOUN" : "DEFAULT";
  }
  if (BEFORE_VERB.has(before)) return "VERB";
  if (BEFORE_NOUN.has(before)) return "NOUN" in entries ? "NOUN" : word.endsWith("ate") ? "ADJ" : "DEFAULT";
  return "DEFAULT";
}
