// The voice: text -> tokens -> sound.

import {setLetterToSound} from "phonate/derivation";
import {setLexicon} from "phonate/lexicon";
import {rises} from "phonate/intonation";
import {knownMark} from "phonate/marks";
import {unpacked, unpackedJson} from "phonate/packed";
import {phonemizerOf, tokensOf} from "phonate/phonemizers";
import {sentences} from "phonate/sentences";
import {levels, pausesOf, shaped, silence, silentEnd} from "phonate/shaping";

const PARAGRAPHS = /\n\s*\n/;

export class NothingToSay extends Error {}

// The voice that is in the page. `settings`: what the export wrote.
export async function loadVoice(settings) {
  if (settings.inventory.phonemizer === "english") {
    setLexicon(await unpackedJson("lexicon"));
    setLetterToSound(await unpackedJson("letter_to_sound"));
  }
  return new Voice(settings, phonemizerOf(settings.inventory), await session());
}

async function session() {
  const script = URL.createObjectURL(new Blob([await unpacked("script")], {type: "text/javascript"}));
  const ort = await import(script);
  URL.revokeObjectURL(script);
  ort.env.wasm.wasmBinary = (await unpacked("runtime")).buffer;
  ort.env.wasm.numThreads = 1; // more need a server that isolates the page
  const model = await ort.InferenceSession.create(await unpacked("model"), {executionProviders: ["wasm"]});
  return {model, Tensor: ort.Tensor};
}

class Voice {
  constructor(settings, phonemizer, {model, Tensor}) {
    this.settings = settings;
    this.phonemizer = phonemizer;
    this.model = model;
    this.Tensor = Tensor;
    this.ids = new Map(settings.inventory.symbols.map((symbol, id) => [symbol, id]));
  }

  // The words of each sentence of `text` that has something to say.
  sentences(text) {
    const {longest, language} = this.settings;
    return text.split(PARAGRAPHS).flatMap(paragraph => {
      const said = sentences(paragraph, longest, language).map(this.phonemizer).filter(words => words.length);
      if (said.length) said.at(-1).at(-1).pause = "paragraph";
      return said;
    });
  }

  // The symbols of each sentence of `text`. A mark that was not learnt is read as a weaker one.
  tokens(text) {
    return this.sentences(text).map(words => this.symbols(words));
  }

  symbols(words) {
    return tokensOf(words.map(word => ({...word, mark: knownMark(word, this.settings.prosody.learnt)})));
  }

  // `text` as samples, their peak 0.95. `speaker`: its number. `progress` is told the share that is done. Throws
  // NothingToSay.
  async speak(text, {speed = 1, speaker = 0, progress = () => {}} = {}) {
    const said = this.sentences(text), sounds = [];
    if (!said.length) throw new NothingToSay();
    for (const [n, words] of said.entries()) {
      progress(n / said.length);
      await new Promise(done => setTimeout(done)); // lets the page be drawn
      sounds.push(...await this.sound(words, speed, speaker));
    }
    return joined(sounds.slice(0, -1), this.settings.peak);
  }

  // The samples of one sentence, and those of the silence before the next one.
  async sound(words, speed, speaker) {
    const {prosody, shaping, melBands, unitDb} = this.settings;
    const ids = BigInt64Array.from(this.symbols(words), symbol => BigInt(this.ids.get(symbol)));
    const questions = prosody.learnt && !prosody.learnt.includes("?") ? prosody.questions : null;
    const feeds = {
      input: new this.Tensor("int64", ids, [1, ids.length]),
      scales: new this.Tensor("float32", Float32Array.of(1, 1 / speed, 1), [3]),
      semitones: new this.Tensor("float32", rises(words, questions), [1, ids.length, 2]),
    };
    if (this.model.inputNames.includes("sid")) feeds.sid = new this.Tensor("int64", [BigInt(speaker)], [1]);
    const {output, frames, mel} = await this.model.run(feeds), level = levels(mel.data, melBands, unitDb);
    const seconds = words.map(word => this.silenceAfter(word) / speed);
    const pauses = pausesOf(words, seconds, frames.data, level, shaping), last = words.at(-1);
    const wanted = (prosody.pauses[last.pause || last.mark] ?? prosody.between) / speed;
    const after = wanted - (silentEnd(level, shaping) * shaping.hop) / shaping.rate;
    return [shaped(output.data, pauses, shaping), silence(Math.max(0, after), shaping)];
  }

  // Seconds of silence after a word within a sentence, at least; 0 where what its mark means was learnt.
  silenceAfter(word) {
    const {learnt, pauses} = this.settings.prosody;
    if (!learnt || (learnt.includes(word.mark) && !word.pause)) return 0;
    return pauses[word.pause || word.mark] ?? 0;
  }
}

// Sounds and silences, one behind the other, at one level.
function joined(sounds, peak) {
  const samples = new Float32Array(sounds.reduce((total, sound) => total + sound.length, 0));
  let at = 0, loudest = 1e-8;
  for (const sound of sounds) {
    samples.set(sound, at);
    at += sound.length;
    for (const sample of sound) loudest = Math.max(loudest, Math.abs(sample));
  }
  return samples.map(sample => (peak / loudest) * sample);
}

// Samples as a WAV file of 16 bits.
export function wav(samples, sampleRate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (at, text) => [...text].forEach((letter, n) => view.setUint8(at + n, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true); // bytes of the format
  view.setUint16(20, 1, true); // whole numbers
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, sampleRate, true);
  view.setUint32(28, 2 * sampleRate, true);
  view.setUint16(32, 2, true); // bytes of a sample
  view.setUint16(34, 16, true); // bits of a sample
  write(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, n) => view.setInt16(44 + 2 * n, Math.round(32767 * Math.max(-1, Math.min(1, sample))), true));
  return new Blob([view], {type: "audio/wav"});
}
