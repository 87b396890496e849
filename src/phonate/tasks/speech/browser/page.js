// What the page does.

import {loadVoice, NothingToSay, wav} from "phonate/voice";

const $ = id => document.getElementById(id);
const settings = JSON.parse($("settings").textContent);
let address = null;

function tell(status, error = "") {
  $("status").textContent = status;
  $("error").textContent = error;
}

function play(samples) {
  if (address) URL.revokeObjectURL(address);
  address = URL.createObjectURL(wav(samples, settings.sampleRate));
  $("player").src = $("save").href = address;
  $("result").hidden = false;
  $("player").play().catch(() => {}); // a browser may want a click on the player first
}

async function speak(voice) {
  const text = $("text").value, speed = Number($("speed").value), speaker = $("speaker")?.selectedIndex ?? 0;
  const started = performance.now();
  $("go").disabled = true;
  try {
    const progress = share => tell(`Speaking: ${Math.round(100 * share)} %`);
    const samples = await voice.speak(text, {speed, speaker, progress});
    play(samples);
    const [seconds, spent] = [samples.length / settings.sampleRate, (performance.now() - started) / 1000];
    tell(`${seconds.toFixed(1)} s of speech, made in ${spent.toFixed(1)} s.`);
  } catch (error) {
    tell("", error instanceof NothingToSay ? "There is nothing in this text that can be spoken." : String(error));
  } finally {
    $("go").disabled = false;
  }
}

async function start() {
  try {
    const voice = await loadVoice(settings);
    window.phonate = voice; // for scripts: phonate.tokens(text), await phonate.speak(text)
    $("form").addEventListener("submit", event => {
      event.preventDefault();
      speak(voice);
    });
    $("go").disabled = false;
    tell("Ready.");
  } catch (error) {
    tell("", `The voice can't be loaded: ${error}`);
  }
}

$("speed").addEventListener("input", () => { $("speed-shown").textContent = `${Number($("speed").value).toFixed(2)} ×`; });
start();
