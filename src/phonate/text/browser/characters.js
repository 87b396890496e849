// The phonemizer `characters`: lower-case letters as phones, in any language. Words are {text, phones, mark}.

import {markOf} from "phonate/marks";

// A phonemizer of the letters `symbols`; `normalise` prepares a text.
export function characters(symbols, normalise) {
  const letters = new Set(symbols);
  return text => {
    const plain = normalise(text).toLowerCase().replaceAll("’", "'").normalize("NFD"), words = [];
    let between = "", word = "";
    for (const character of [...plain, "\n"]) {
      if (letters.has(character)) {
        if (!word && words.length) words.at(-1).mark = markOf(between);
        word += character;
        between = "";
        continue;
      }
      const stripped = word.replace(/^'+|'+$/g, "");
      if (stripped) words.push({text: stripped.normalize("NFC"), phones: [...stripped], mark: ""});
      word = "";
      between += character;
    }
    if (words.length) words.at(-1).mark = markOf(between);
    return words;
  };
}
