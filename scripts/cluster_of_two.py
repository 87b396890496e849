"""Play a scheduler with two nodes: lose one without a word, go on with the other, give it back, and finish.

    python scripts/cluster_of_two.py [--folder FOLDER]

Needs Linux with iproute2 and util-linux, and no root where user namespaces are allowed. The nodes are network spaces
of this machine with a cable between them, and share a folder as a cluster would. Each start runs one command on every
node: torchrun with `phonate train ... --resume auto`. At the end the losses are compared with those of one process that
nothing happened to.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

INSIDE = "PHONATE_CLUSTER_OF_TWO"
NODES = {"a": "10.77.0.1", "b": "10.77.0.2"}
STEPS = 40
RECIPE = [
    "language",
    "size=tiny",
    "training.batch_size=8",
    f"training.max_steps={STEPS}",
    "training.logging.interval=1",
    "training.checkpoint.interval=5",
    "training.validation.interval=1000",
    "training.mixed_precision=fp32",
    "training.distributed.timeout_minutes=0.5",
]


def shell(command: str) -> None:
    subprocess.run(command, shell=True, check=True)


def wire() -> None:
    """Two namespaces with a cable between them."""
    shell("mount -t tmpfs none /run && mkdir -p /run/netns")
    for node in NODES:
        shell(f"ip netns add {node}")
    shell("ip link add eth-a netns a type veth peer name eth-b netns b")
    for node, address in NODES.items():
        shell(f"ip -n {node} addr add {address}/24 dev eth-{node}")
        shell(f"ip -n {node} link set lo up && ip -n {node} link set eth-{node} up")


class Job:
    """One start of the command on each of `nodes`."""

    def __init__(self, nodes: Sequence[str], folder: Path, port: int) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for rank, node in enumerate(nodes):
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"eth-{node}"}
            launcher = ["torch.distributed.run", f"--nnodes={len(nodes)}", f"--node_rank={rank}", "--nproc_per_node=1"]
            launcher += [f"--master_addr={NODES[nodes[0]]}", f"--master_port={port}", "--max_restarts=0"]
            command = ["ip", "netns", "exec", node, sys.executable, "-m", *launcher, "-m", "phonate", "train", *RECIPE]
            command += [f"data.path={folder / 'lines.txt'}", "--output", str(folder / "run"), "--resume", "auto"]
            log = (folder / f"{node}.log").open("ab")
            self.processes[node] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        say(f"started on {' and '.join(nodes)}")

    def wait_for_step(self, step: int) -> None:
        """Wait until that step is saved."""
        until(lambda: saved(self.folder) >= step, f"step {step}", self.processes)

    def end(self, node: str, number: signal.Signals) -> None:
        """Send a signal to all processes of a node."""
        os.killpg(self.processes[node].pid, number)

    def wait(self) -> dict[str, int]:
        """The exit codes, when all have ended."""
        return {node: process.wait(300) for node, process in self.processes.items()}


def until(condition: Callable[[], bool], what: str, processes: dict[str, subprocess.Popen[bytes]]) -> None:
    ends = time.monotonic() + 300
    while not condition():
        if time.monotonic() > ends or any(process.poll() is not None for process in processes.values()):
            raise SystemExit(f"no {what}; look into the logs")
        time.sleep(0.05)


def saved(folder: Path) -> int:
    return max((int(path.name[5:]) for path in folder.glob("run/checkpoints/step-*")), default=0)


def losses(run: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if row["split"] == "train"}


BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


def play(folder: Path) -> int:
    """The whole play; 0 where it ends as it should."""
    wire()
    words = ("red", "blue", "green", "small", "old"), ("cat", "dog", "hen", "cow", "owl", "fox"), ("runs", "sleeps")
    lines = [f"The {colour} {animal} {verb} here." for colour in words[0] for animal in words[1] for verb in words[2]]
    (folder / "lines.txt").write_text("\n".join(lines) + "\n")

    job = Job(["a", "b"], folder, 29511)
    job.wait_for_step(10)
    shell("ip -n b link set eth-b down")  # before the kill, so that a hears nothing of it
    job.end("b", signal.SIGKILL)
    lost = time.monotonic()
    say(f"b is gone without a word, after step {saved(folder)}")
    code = job.wait()["a"]
    say(f"a gave up after {time.monotonic() - lost:.0f} s, exit {code}; step {saved(folder)} is saved")
    if code == 0:
        return 1

    job = Job(["a"], folder, 29512)
    job.wait_for_step(20)
    shell("ip -n b link set eth-b up")
    job.end("a", signal.SIGTERM)
    say(f"b is back; SIGTERM to a, exit {job.wait()['a']}; step {saved(folder)} is saved")

    codes = Job(["a", "b"], folder, 29513).wait()
    say(f"done on both, exits {codes}; step {saved(folder)}")

    alone = [sys.executable, "-m", "phonate", "train", *RECIPE, f"data.path={folder / 'lines.txt'}"]
    with (folder / "alone.log").open("wb") as log:
        subprocess.run([*alone, "--output", str(folder / "alone")], check=True, stdout=log, stderr=log)
    ours, theirs = losses(folder / "run"), losses(folder / "alone")
    worst = max(abs(ours[step] - theirs[step]) / theirs[step] for step in theirs) if ours.keys() == theirs.keys() else 1
    say(f"{len(ours)} steps, each once; losses within {worst:.1e} of those of one process that nothing happened to")
    return int(any(codes.values()) or worst > 1e-4)


def main() -> int:
    """Enter namespaces of our own, and play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="what the nodes share (default: a temporary folder)")
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="cluster-"))
    if INSIDE not in os.environ:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["unshare", "--user", "--map-root-user", "--net", "--mount", sys.executable, __file__]
        return subprocess.run(
            [*command, "--folder", str(folder)], env={**os.environ, INSIDE: "1"}, check=False
        ).returncode
    return play(folder.resolve())


if __name__ == "__main__":
    sys.exit(main())
