"""How much faster a server answers eight requests at once than one after the other, and how soon each is heard.

    python benchmarks/serving.py RUN [--at-once 8] [--rounds 3] [--out FILE] [--reference REF.wav --reference-text TEXT]
    python benchmarks/serving.py base/voice --at-once 16 --piper en_US-joe-medium.onnx

`phonate serve RUN` runs in a process of its own, and is asked over HTTP for 16-bit samples as they are made. In each
round the same texts are asked for one after the other, then all at once. Throughput is seconds of speech made per
second by the clock; first sound is from sending a request to its first bytes of sound, at the client. `--reference`:
for models that clone. `--piper` asks Piper's HTTP server (pip install piper-tts flask) with that voice for the same
texts, in turns; each server waits while the other is asked. rtf is processor time of the server over the length of what
was spoken, which depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from phonate.workflows.demo.embedded import SENTENCES

_BYTES = 2  # of a sample


@dataclass(frozen=True)
class Answer:
    """One request, in seconds."""

    first_sound: float
    audio: float


def started(run: Path, at_once: int) -> tuple[subprocess.Popen[str], str]:
    """The server and its address."""
    command = [sys.executable, "-m", "phonate", "serve", str(run), "--port", "0"]
    command += ["--max-batch", str(at_once), "--max-queue", "0", "--model-name", "bench"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if found := re.search(r"serving .*(http://\S+)", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would block it
            return process, found[1]
    raise SystemExit(f"the server did not start:\n{said}")


def started_piper(model: Path) -> tuple[subprocess.Popen[str], str]:
    """Piper's server and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "piper.http_server", "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    url = f"http://127.0.0.1:{port}"
    for _ in range(300):
        try:
            httpx.get(f"{url}/info")
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return process, url
    raise SystemExit("Piper's server did not start")


def peak_megabytes(process: subprocess.Popen[str]) -> float:
    """The largest memory that a process had, in 10^6 bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e6


def processor_seconds(process: subprocess.Popen[str]) -> float:
    """What a process has used of all cores."""
    used = psutil.Process(process.pid).cpu_times()
    return used.user + used.system


def ask_piper(client: httpx.Client, fields: dict[str, Any], text: str) -> Answer:
    """As `ask`; its sound comes in one piece."""
    began = time.perf_counter()
    answer = client.post("/synthesize", json={"text": text})
    first = time.perf_counter() - began
    with wave.open(io.BytesIO(answer.content)) as sound:
        return Answer(first, sound.getnframes() / sound.getframerate())


def ask(client: httpx.Client, fields: dict[str, Any], text: str) -> Answer:
    """Ask for one text and listen to all of it."""
    began, first, length = time.perf_counter(), None, 0
    body = {"model": "bench", "input": text, "response_format": "pcm", **fields}
    with client.stream("POST", "/v1/audio/speech", json=body) as answer:
        if answer.status_code != 200:
            raise SystemExit(f"{answer.status_code}: {answer.read().decode()}")
        for part in answer.iter_raw():
            first = time.perf_counter() - began if first is None else first
            length += len(part)
        rate = int(answer.headers["X-Sample-Rate"])
    assert first is not None
    return Answer(first, length / _BYTES / rate)


Asked = Callable[[httpx.Client, dict[str, Any], str], Answer]


def beside_piper(args: argparse.Namespace, texts: list[str]) -> list[str]:
    """A table of both servers, which are asked in turns."""
    servers = {"phonate": (*started(args.run, args.at_once), ask), "Piper": (*started_piper(args.piper), ask_piper)}
    speeds: dict[str, list[float]] = {name: [] for name in servers}
    firsts: dict[str, list[float]] = {name: [] for name in servers}
    factors: dict[str, list[float]] = {name: [] for name in servers}
    lines = [
        f"`python benchmarks/serving.py {args.run} --at-once {args.at_once} --rounds {args.rounds} --piper "
        f"{args.piper.name}`: {len(texts)} sentences, {platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}.",
        "",
        "| server | seconds of speech per second | first sound, median ms | 95 % ms | rtf | peak memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    try:
        for number in range(args.rounds + 1):
            for name, (process, url, asked) in servers.items():
                before = processor_seconds(process)
                with httpx.Client(base_url=url, timeout=600) as client:
                    answers, took = answered(client, {}, texts, args.at_once, asked)
                if number:  # the first round warms up
                    made = sum(answer.audio for answer in answers)
                    speeds[name].append(made / took)
                    factors[name].append((processor_seconds(process) - before) / made)
                    firsts[name] += [answer.first_sound for answer in answers]
        for name, (process, _, _) in servers.items():
            half, most = np.percentile(firsts[name], [50, 95]) * 1e3
            speed, factor = statistics.median(speeds[name]), statistics.median(factors[name])
            memory = peak_megabytes(process)
            lines.append(f"| {name} | {speed:.1f} | {half:.0f} | {most:.0f} | {factor:.4f} | {memory:.0f} |")
    finally:
        for process, _, _ in servers.values():
            process.terminate()
            process.wait()
    ratio = statistics.median(ours / theirs for ours, theirs in zip(speeds["phonate"], speeds["Piper"], strict=True))
    late = np.percentile(firsts["phonate"], 95) / np.percentile(firsts["Piper"], 95)
    used = statistics.median(ours / theirs for ours, theirs in zip(factors["phonate"], factors["Piper"], strict=True))
    ratios = f"throughput {ratio:.2f} and rtf {used:.2f} (medians of rounds), first sound, 95 %, {late:.2f}"
    return [*lines, "", f"phonate / Piper: {ratios}."]


def answered(
    client: httpx.Client, fields: dict[str, Any], texts: list[str], at_once: int, asked: Asked = ask
) -> tuple[list[Answer], float]:
    """What was answered, and in how many seconds."""
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        answers = list(threads.map(lambda text: asked(client, fields, text), texts))
    return answers, time.perf_counter() - began


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--reference-text")
    parser.add_argument("--piper", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    fields: dict[str, Any] = {}
    if args.reference is not None:
        fields["reference_audio"] = base64.b64encode(args.reference.read_bytes()).decode()
        fields["reference_text"] = args.reference_text
    texts = list(SENTENCES[: args.at_once])
    if args.piper is not None:
        report(beside_piper(args, texts), args.out)
        return
    process, url = started(args.run, args.at_once)
    throughput: dict[int, list[float]] = {1: [], args.at_once: []}
    firsts: dict[int, list[float]] = {1: [], args.at_once: []}
    try:
        with httpx.Client(base_url=url, timeout=600) as client:
            ask(client, fields, texts[0])  # warms up
            for _ in range(args.rounds):
                for at_once in throughput:
                    answers, took = answered(client, fields, texts, at_once)
                    throughput[at_once].append(sum(answer.audio for answer in answers) / took)
                    firsts[at_once] += [answer.first_sound for answer in answers]
    finally:
        process.terminate()
        process.wait()
    lines = [
        f"`python benchmarks/serving.py RUN --at-once {args.at_once} --rounds {args.rounds}`: {len(texts)} sentences, "
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}.",
        "",
        "| requests at once | seconds of speech per second | / one at once | first sound, median ms | 90 % ms |",
        "|---|---|---|---|---|",
    ]
    for at_once, speeds in throughput.items():
        ratio = statistics.median(many / one for many, one in zip(speeds, throughput[1], strict=True))
        half, most = np.percentile(firsts[at_once], [50, 90]) * 1e3
        lines.append(f"| {at_once} | {statistics.median(speeds):.2f} | {ratio:.2f} | {half:.0f} | {most:.0f} |")
    report(lines, args.out)


def report(lines: list[str], out: Path | None) -> None:
    """Print lines, and write them."""
    print("\n".join(lines))
    if out is not None:
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
