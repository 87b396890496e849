// The voice: text -> tokens -> sound.

import {setLetterToSound} from "phonate/letter_to_sound";
import {setLexicon} from "phonate/lexicon";
import {unpacked, unpackedJson} from "phonate/packed";
import {phonemizerOf, tokensOf} from "phonate/phonemizers";
import {sentences} from "phonate/sentences";

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

  // The symbols of each sentence of `text` that has something to say.
  tokens(text) {
    const {longest, language} = this.settings;
    return sentences(text, longest, language).map(this.phonemizer).filter(words => words.length).map(tokensOf);
  }

  // `text` as samples, their peak 0.95. `speaker`: its number. `progress` is told the share that is done. Throws
  // NothingToSay.
  async speak(text, {speed = 1, speaker = 0, progress = () => {}} = {}) {
    const spoken = this.tokens(text), sounds = [];
    if (!spoken.length) throw new NothingToSay();
    for (const tokens of spoken) {
      progress(sounds.length / spoken.length);
      await new Promise(done => setTimeout(done)); // lets the page be drawn
      sounds.push(await this.sound(tokens, speed, speaker));
    }
    return joined(sounds, this.settings);
  }

  // The samples of one sentence.
  async sound(tokens, speed, speaker) {
    const ids = BigInt64Array.from(tokens, token => BigInt(this.ids.get(token)));
    const feeds = {
      input: new this.Tensor("int64", ids, [1, ids.length]),
      scales: new this.Tensor("float32", Float32Array.of(1, 1 / speed, 1), [3]),
    };
    if (this.model.inputNames.includes("sid")) feeds.sid = new this.Tensor("int64", [BigInt(speaker)], [1]);
    return (await this.model.run(feeds)).output.data;
  }
}

// Sentences with pauses between them, at one level.
function joined(sounds, {sampleRate, pauseSeconds, peak}) {
  const pause = Math.floor(pauseSeconds * sampleRate);
  const samples = new Float32Array(sounds.reduce((total, sound) => total + sound.length + pause, -pause));
  let at = 0, loudest = 1e-8;
  for (const sound of sounds) {
    samples.set(sound, at);
    at += sound.length + pause;
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
