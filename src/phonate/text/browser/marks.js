// The punctuation that a word can have after it.

import {phonemes} from "phonate/rules";

// The strongest mark in `between`, the text between two words; "" if it has none.
export function markOf(between) {
  const plain = between.replaceAll("…", ".").replace(/[—–]/g, "-");
  return [...phonemes.STRONGEST_FIRST].find(mark => plain.includes(mark)) ?? "";
}
