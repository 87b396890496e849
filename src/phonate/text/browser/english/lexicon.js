// The English lexicon, in ARPAbet.

import {get, split} from "phonate/matching";
import {lexicon as rules} from "phonate/rules";

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
