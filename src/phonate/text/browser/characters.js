// The phonemizer `characters`: lower-case letters as phones, in any language. Words are {text, phones, mark, pause}.

import {markOf, pauseOf} from "phonate/marks";

// A phonemizer of the letters `symbols`; `normalise` prepares a text.
export function characters(symbols, normalise) {
  const letters = new Set(symbols);
  return text => {
    const plain = normalise(text).toLowerCase().replaceAll("’", "'").normalize("NFD"), words = [];
    let between = "", word = "";
    for (const character of [...plain, "\n"]) {
      if (letters.has(character)) {
        if (!word && words.length) setOff(words.at(-1), between);
        word += character;
        between = "";
        continue;
      }
      const stripped = word.replace(/^'+|'+$/g, "");
      if (stripped) words.push({text: stripped.normalize("NFC"), phones: [...stripped], mark: "", pause: ""});
      word = "";
      between += character;
    }
    if (words.length) setOff(words.at(-1), between);
    return words;
  };
}

function setOff(word, between) {
  [word.mark, word.pause] = [markOf(between), pauseOf(between)];
}
