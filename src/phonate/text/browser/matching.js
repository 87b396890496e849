// What Python's `re` does, with patterns that have the flag g. A match is that of `exec`, with `index` and `input`.

const compiled = new Map();

function variant(pattern, source, flags) {
  const key = `${source}/${flags}`;
  if (!compiled.has(key)) compiled.set(key, new RegExp(source, flags));
  return compiled.get(key);
}

// `text` with each match replaced by `words`, in which \1 is the first group, or by what the function `words` returns.
export function sub(pattern, words, text) {
  if (typeof words === "string") {
    return sub(pattern, found => words.replace(/\\(\d)/g, (_, group) => found[group] ?? ""), text);
  }
  let done = "", end = 0;
  for (const found of text.matchAll(pattern)) {
    done += text.slice(end, found.index) + words(found);
    end = found.index + found[0].length;
  }
  return done + text.slice(end);
}

export function search(pattern, text) {
  pattern.lastIndex = 0;
  return pattern.exec(text);
}

// The match that begins at `at`.
export function matchAt(pattern, text, at) {
  const sticky = variant(pattern, pattern.source, pattern.flags.replace("g", "y"));
  sticky.lastIndex = at;
  return sticky.exec(text);
}

export function fullMatch(pattern, text) {
  return variant(pattern, `^(?:${pattern.source})$`, pattern.flags.replace("g", "")).exec(text);
}

export const matches = (pattern, text) => [...text.matchAll(pattern)];

export const endOf = found => found.index + found[0].length;

// The pieces between white space.
export const split = text => text.split(/\s+/).filter(Boolean);

// The value of a table; undefined for what it has not, such as "constructor".
export const get = (table, key) => Object.hasOwn(table, key) ? table[key] : undefined;
