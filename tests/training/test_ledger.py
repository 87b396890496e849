"""Where the time of a run went: every second since it began has a kind, over kills and resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_tasks import RegressionTask
from test_trainer import lines as metrics
from test_trainer import train

from phonate.config.errors import InputError
from phonate.training.ledger import KINDS, Ledger, newest_step, read, told
from phonate.training.tracking import read_events


def lines(path: Path, *rows: tuple[float, int, dict[str, float]]) -> Path:
    path.write_text("".join(json.dumps({"began": b, "step": n, "seconds": s}) + "\n" for b, n, s in rows))
    return path


def test_what_came_after_the_checkpoint_of_a_resume_is_lost_and_a_gap_is_idle(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "time.jsonl",
        (1000.0, 0, {"start": 5.0}),
        (1000.0, 10, {"start": 5.0, "train": 20.0, "save": 1.0}),
        (1000.0, 16, {"start": 5.0, "train": 32.0, "data": 2.0, "save": 1.0}),  # killed; step 10 was saved
        (1050.0, 10, {"recover": 4.0}),
        (1050.0, 20, {"recover": 4.0, "train": 21.0, "validate": 3.0}),
    )
    spent = read(path)
    assert spent == pytest.approx(
        {"start": 5.0, "recover": 4.0, "train": 41.0, "validate": 3.0, "save": 1.0, "lost": 14.0, "idle": 10.0}
    )
    assert sum(spent.values()) == pytest.approx(1050.0 + 28.0 - 1000.0)
    assert told(spent).startswith("68 s, of which 60 % training, 21 % done in vain")
    assert told(spent).endswith(" (not running for 10 s in between)")


def test_what_is_lost_twice_counts_once(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "time.jsonl",
        (0.0, 0, {"start": 1.0}),
        (0.0, 5, {"start": 1.0, "train": 9.0}),
        (10.0, 0, {"start": 1.0}),
        (10.0, 5, {"start": 1.0, "train": 9.0}),
        (20.0, 0, {"start": 1.0}),
        (20.0, 5, {"start": 1.0, "train": 9.0}),
    )
    assert read(path) == pytest.approx({"start": 3.0, "train": 9.0, "lost": 18.0})


class Wider(RegressionTask):
    def model(self, device):
        return torch.nn.Linear(5, 5).to(device)


def test_a_resume_that_is_refused_loses_nothing(tmp_path: Path) -> None:
    train(tmp_path / "run", max_steps=4)
    path = tmp_path / "run/time.jsonl"
    before = path.read_bytes()
    with pytest.raises(InputError, match="step-00000004"):
        train(tmp_path / "run", Wider(), max_steps=8, resume="latest")
    assert path.read_bytes() == before
    began = json.loads(before.splitlines()[-1])["began"]
    with path.open("a") as file:  # as earlier versions wrote
        file.write(json.dumps({"began": began + 50, "step": 0, "seconds": {"save": 0.1}}) + "\n")
    train(tmp_path / "run", max_steps=8, resume="latest")
    assert "lost" not in read(path)


def test_a_resume_that_trains_nothing_leaves_the_records_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def records() -> dict[str, bytes]:
        files = (path for path in sorted((tmp_path / "run").rglob("*")) if path.is_file() and path.name != ".lock")
        return {str(path): path.read_bytes() for path in files}

    written = {"tensorboard": True, "interval": 2}
    train(tmp_path / "run", max_steps=4, logging=written)
    before = records()
    for steps, said in ((4, "this run is finished"), (2, "this run is past training.max_steps=2 already")):
        caplog.clear()
        with caplog.at_level("INFO"):
            assert train(tmp_path / "run", max_steps=steps, resume="latest", logging=written).step == 4
        assert [record.message.startswith(said) for record in caplog.records] == [True]
        assert records() == before
    with caplog.at_level("INFO"):
        train(tmp_path / "run", max_steps=6, resume="latest", logging=written)
    assert any(record.message.startswith("time: ") for record in caplog.records)
    assert {"recover", "train"} <= read(tmp_path / "run/time.jsonl").keys()
    assert len(read_events(tmp_path / "run/metrics.jsonl", "resumed")) == 1


def test_steps_are_noted_between_log_lines_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phonate.training.ledger.OFTEN", 0.0)
    train(tmp_path / "run", max_steps=3, logging={"interval": 100}, validation={"interval": 100})
    rows = [json.loads(line) for line in (tmp_path / "run/time.jsonl").read_text().splitlines()]
    assert {0, 1, 2, 3} == {row["step"] for row in rows}
    assert newest_step(tmp_path / "run/time.jsonl") == 3
    assert newest_step(tmp_path / "nothing.jsonl") == 0


def test_an_incomplete_last_line_and_no_file(tmp_path: Path) -> None:
    path = lines(tmp_path / "time.jsonl", (0.0, 0, {"start": 1.0}))
    path.write_text(path.read_text() + '{"began": 0.0, "st')
    assert read(path) == {"start": 1.0}
    assert read(tmp_path / "nothing.jsonl") == {}


def test_a_damaged_file_costs_its_lines_alone_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = json.dumps({"began": 10.0, "step": 4, "seconds": {"start": 1.0, "train": 2.0}}).encode()
    other = b'{"began": 3.0, "step": "x", "seconds": {}}'
    for damage in (os.urandom(50).replace(b"\n", b"") + b"\xff", b"7", b"{}", b'{"began": 1', b"[" * 100_000, other):
        path = tmp_path / "time.jsonl"
        path.write_bytes(whole + b"\n" + damage + b"\n")
        assert read(path) == {"start": 1.0, "train": 2.0}
        ledger = Ledger(path, began=13.0)
        caplog.clear()
        ledger.begin(4)
        assert f"{path}:2" in caplog.text
        assert read(path)["start"] == 1.0


def test_a_run_goes_on_where_its_times_are_damaged(tmp_path: Path) -> None:
    train(tmp_path / "run", max_steps=2)
    (tmp_path / "run/time.jsonl").write_bytes(b"\xff\xfe\n")
    train(tmp_path / "run", max_steps=4, resume="latest")
    assert "recover" in read(tmp_path / "run/time.jsonl")


def test_only_one_rank_writes(tmp_path: Path) -> None:
    ledger = Ledger(None)
    ledger.mark("train")
    ledger.write(1)
    assert not list(tmp_path.iterdir())


def test_trackers_get_where_time_went_over_all_processes(tmp_path: Path) -> None:
    train(tmp_path / "run", max_steps=6, logging={"interval": 2, "tensorboard": True})
    train(tmp_path / "run", max_steps=12, resume="latest", logging={"interval": 2, "tensorboard": True})
    rows = metrics(tmp_path / "run", "train")
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 12]
    for row in rows:
        shares = {name: value for name, value in row.items() if name.startswith("time/")}
        assert sum(shares.values()) == pytest.approx(100.0, abs=1e-6)
        assert ("time/recover" in shares) == (row["step"] > 6)
    spent = read(tmp_path / "run/time.jsonl")
    # of both processes, and of what is over when the last line is written
    ratio = rows[-1]["time/start"] / rows[-1]["time/recover"]
    assert ratio == pytest.approx(spent["start"] / spent["recover"], rel=0.01)
    for events in (tmp_path / "run/events").iterdir():
        assert b"time/train" in events.read_bytes()


TRAIN = ["sequence", "size=tiny", "training.checkpoint.interval=5", "training.logging.interval=1", "--mode", "cpu"]


@pytest.mark.slow
def test_a_run_that_was_killed_accounts_for_every_second(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"source": "a b c", "target": "c b a"}\n' * 40)
    command = [sys.executable, "-m", "phonate", "train", *TRAIN, "data.path=rows.jsonl", "training.max_steps=12"]
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import time\nfrom phonate.training.callbacks import CALLBACKS, Callback\n"
        "class Slow(Callback):\n    def on_optimizer_step(self, trainer):\n        time.sleep(0.2)\n"
        'CALLBACKS.register("slow", Slow)\n'
    )
    command[3:3] = ["--plugin", str(slow)]
    command += ["training.callbacks=[{type: slow}]", "--output", "run", "--resume", "auto"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.time()
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    path = tmp_path / "run" / "time.jsonl"
    while not (path.exists() and '"step": 8' in path.read_text()):
        assert first.poll() is None, first.stderr.read() if first.stderr else ""
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    time.sleep(1.0)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    ended = time.time()
    spent = read(path)
    assert set(spent) <= set(KINDS)
    assert spent["lost"] >= 0.6, "steps 6 to 8"
    assert spent["idle"] >= 1.0
    assert spent["train"] >= 12 * 0.2
    imports = ended - began - sum(spent.values())
    assert 0.0 <= imports < 20.0, "before the first line and after the last there are only imports"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    whole = rows[-1]["began"] + sum(rows[-1]["seconds"].values()) - rows[0]["began"]
    assert sum(spent.values()) == pytest.approx(whole, rel=0.01)
    assert "time: " in done.stderr + done.stdout
    assert "% done in vain" in done.stderr + done.stdout
