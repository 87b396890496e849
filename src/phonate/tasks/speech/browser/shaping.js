// Silences that are put into a sentence, as phonate/tasks/speech/inference.py does.

// As Python rounds: halves to the even number.
const round = value => Math.abs(value % 1) === 0.5 ? 2 * Math.round(value / 2) : Math.round(value);

// The level of each frame in dB relative to the loudest, of a mel (frames by `bands`), of which 1 is `unitDb`.
export function levels(mel, bands, unitDb) {
  const found = [];
  for (let at = 0; at < mel.length; at += bands) {
    let power = 0;
    for (let band = at; band < at + bands; band++) power += 10 ** ((unitDb * mel[band]) / 10);
    found.push(10 * Math.log10(power));
  }
  const loudest = found.reduce((most, one) => Math.max(most, one), -Infinity);
  return found.map(one => one - loudest);
}

// Silent frames at the end.
export const silentEnd = (level, {silentDb}) => level.length - 1 - level.findLastIndex(one => one >= silentDb);

// Silences, [in front of which sample, samples], after words at whose ends it has to be quiet for `seconds` each.
// `frames`: of each symbol.
export function pausesOf(words, seconds, frames, level, {hop, rate, near, silentDb}) {
  const ends = [], found = [];
  for (const count of frames) ends.push((ends.at(-1) ?? 0) + Number(count));
  let token = 0;
  for (const [n, word] of words.slice(0, -1).entries()) {
    token += word.phones.length + 1;
    const [begin, end] = [ends[token - 1], ends[token]];
    const beside = level.slice(Math.max(0, begin - near), Math.min(level.length, end + near));
    const missing = seconds[n] - (longestRun(beside.map(one => one < silentDb)) * hop) / rate;
    if (missing > 0) found.push([quietest(level, begin, end) * hop, round(missing * rate)]);
  }
  return found;
}

function longestRun(values) {
  let longest = 0, run = 0;
  for (const value of values) longest = Math.max(longest, run = value ? run + 1 : 0);
  return longest;
}

// The quietest frame between two words, so that the silence in front of it is part of neither.
function quietest(level, begin, end) {
  const first = Math.min(begin, level.length - 1), near = level.slice(first, Math.min(level.length, end + 1));
  return first + near.indexOf(near.reduce((least, one) => Math.min(least, one), Infinity));
}

// `samples` with these silences in them, at which the sound fades out and in.
export function shaped(samples, pauses, {rate, fadeSeconds}) {
  const fade = Math.max(1, round(fadeSeconds * rate));
  const gain = at => pauses.reduce((product, [place]) => product * Math.min(Math.abs(at + 0.5 - place) / fade, 1), 1);
  const done = new Float32Array(pauses.reduce((total, [, silence]) => total + silence, samples.length));
  let begin = 0, moved = 0;
  for (const [place, silence] of [...pauses, [Infinity, 0]]) {
    const end = Math.min(place, samples.length);
    for (let at = begin; at < end; at++) done[at + moved] = pauses.length ? samples[at] * gain(at) : samples[at];
    [begin, moved] = [end, moved + silence];
  }
  return done;
}

export const silence = (seconds, {rate}) => new Float32Array(round(seconds * rate));
