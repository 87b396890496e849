// Where the pitch of questions rises, as phonate/text/intonation.py says. Words are {text, phones, mark, pause}.

import {fullMatch} from "phonate/matching";
import {intonation as rules} from "phonate/rules";

// Semitones at the beginning and the end of each symbol of a sentence, in turns: [begin, end, begin, end, ...].
// `questions`: the data of the language, null where it has none.
export function rises(words, questions) {
  const first = [1]; // the first symbol of each word
  for (const word of words) first.push(first.at(-1) + word.phones.length + 1);
  const found = new Float32Array(2 * first.at(-1));
  if (!questions) return found;
  for (const [begin, end] of questionsOf(words)) {
    for (const [start, last, share] of rising(words.slice(begin, end), questions)) {
      const accented = begin + start, final = begin + last, rise = share * questions.rise;
      const token = first[accented] + stressed(words[accented].phones);
      const steps = Math.max(first[final] + voiced(words[final].phones) - token, 1);
      for (let n = 0; n < 2 * steps; n++) found[2 * token + n] = (rise * Math.ceil(n / 2)) / steps;
      // the last phone dies away in the mark
      if (final + 1 === end) found.fill(rise, 2 * (token + steps), 2 * first[end]);
    }
  }
  return found;
}

// First word of each question, and the one behind its last.
function* questionsOf(words) {
  let begin = 0;
  for (const [n, {mark}] of words.entries()) {
    if (mark === "?") yield [begin, n + 1];
    if (mark === "?" || rules.ENDS.has(mark)) begin = n + 1;
  }
}

// Parts of a question that rise: the accented word, the last one, and the share of the rise.
function* rising(words, questions) {
  const said = words.map(({text}) => text.toLowerCase().replaceAll("’", "'"));
  const clauses = clausesOf(words, said), closing = clauses.at(-1)?.join(" ") ?? "";
  if (clauses.length > 1 && questions.tags.some(tag => fullMatch(new RegExp(tag, "g"), closing))) return;
  if (falls(clauses, questions)) return;
  const between = alternative(said, questions), end = between ?? words.length;
  yield [accentedOf(said.slice(0, end), questions), end - 1, between === null ? 1 : rules.ALTERNATIVE];
}

function clausesOf(words, said) {
  const clauses = [[]];
  for (const [n, word] of words.entries()) {
    clauses.at(-1).push(said[n]);
    if (word.pause || rules.CLAUSE_ENDS.has(word.mark)) clauses.push([]);
  }
  return clauses.filter(clause => clause.length);
}

// Whether it is a wh-question: the last clause that begins as a question does begins with such a word.
function falls(clauses, {leading, auxiliaries, falling}) {
  for (const clause of [...clauses].reverse()) {
    const opening = clause.find(word => !leading.includes(word));
    if (auxiliaries.includes(opening)) return false;
    if (falling.includes(opening) || falling.includes(clause[0])) return true;
  }
  return false;
}

// The word between the last two alternatives; null where there are none.
function alternative(said, {alternatives, open_ends: openEnds}) {
  for (let n = said.length - 2; n > 0; n--) {
    if (alternatives.includes(said[n])) return openEnds.includes(said[n + 1]) ? null : n;
  }
  return null;
}

// The last word that is likely to be accented.
function accentedOf(said, {unaccented}) {
  const found = said.findLastIndex(word => !unaccented.includes(word));
  return found < 0 ? said.length - 1 : found;
}

// Phones of a word up to its last voiced one: the pitch of others is not heard.
const voiced = phones => phones.findLastIndex(phone => !rules.VOICELESS.has(phone)) + 1 || phones.length;

// The last stressed phone of a word; else the first.
const stressed = phones => Math.max(0, phones.findLastIndex(phone => phone === "ˈ" || phone.endsWith("1")));
