// Words with several pronunciations, disambiguated by the neighbouring words.

import {get} from "phonate/matching";
import {homographs as rules} from "phonate/rules";

const {BEFORE_NOUN, BEFORE_PARTICIPLE, BEFORE_THIRD_PERSON, BEFORE_VERB, LIVE} = rules;

// The pronunciation of `word` among `entries` (part of speech -> phones), given its lower-case neighbours.
export const choose = (word, entries, before, after) => get(entries, tag(word, entries, before, after)) ?? entries.DEFAULT;

function tag(word, entries, before, after) {
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
