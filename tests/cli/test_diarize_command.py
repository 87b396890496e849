"""`phonate diarize`: from a corpus to turns, a picture, a page and a stream."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import soundfile

import phonate
from meetings import meeting, recipe, trained_on_meetings, write_meetings
from pages import Page
from phonate.cli import main
from phonate.data.annotations import read_rttm, write_rttm
from phonate.data.labels import read_turns
from phonate.evaluation.diarization import score
from phonate.training.checkpoints import files, listing
from sounds import SAMPLE_RATE

CAUSAL = """
  model_type: decoder
  decoder: {attention_type: causal_linear, positional_encoding: rope}
"""


@pytest.fixture(scope="module")
def run():
    """A run of two speakers who sound very different."""
    return trained_on_meetings() / "run"


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """A meeting that no model was trained on, and its reference."""
    folder = tmp_path_factory.mktemp("held out")
    waveform, turns = meeting(100, 4.0)
    soundfile.write(folder / "my meeting.wav", waveform, SAMPLE_RATE)
    write_rttm(folder / "ref.rttm", {"my_meeting": turns})
    return folder / "my meeting.wav"


def test_it_learns_and_writes_everything(run, held_out, tmp_path, capsys):
    out = {name: tmp_path / f"out.{name}" for name in ("rttm", "png", "html")}
    command = ["diarize", str(run), str(held_out), "-o", str(out["rttm"])]
    assert main([*command, "--plot", str(out["png"]), "--page", str(out["html"])]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{out['rttm']}, {out['png']}, {out['html']}: 2 speakers in ")
    reference, found = read_rttm(held_out.parent / "ref.rttm")["my_meeting"], read_rttm(out["rttm"])["my_meeting"]
    assert score(reference, found).der < 0.4
    assert out["png"].read_bytes()[1:4] == b"PNG"
    assert main(["score", str(held_out.parent / "ref.rttm"), str(out["rttm"])]) == 0
    page = Page(out["html"].read_text())
    assert len(page.all("rect")) == len(found)
    (sound,) = page.all("audio")
    assert str(sound["src"]).startswith("data:audio/mpeg;base64,")
    assert all(not attrs.get("src") or str(attrs["src"]).startswith("data:") for _, attrs in page.tags)
    assert "http" not in out["html"].read_text().replace(str(sound["src"]), "")


def test_json_and_printed_lines(run, held_out, capsys):
    assert main(["diarize", str(run), str(held_out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] == pytest.approx(4.0)
    assert {turn["speaker"] for turn in found["turns"]} == set(found["speakers"])
    assert main(["diarize", str(run), str(held_out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found["turns"])
    assert all(line.startswith("SPEAKER my_meeting 1 ") for line in lines)


@pytest.mark.parametrize(("stopped", "told"), [(False, True), (True, False)])
def test_a_run_that_has_not_ended_says_so(run, held_out, tmp_path, capsys, caplog, stopped, told):
    """Unless a callback, such as early stopping, has ended it."""
    assert main(["diarize", str(run), str(held_out)]) == 0
    assert "note:" not in capsys.readouterr().err
    shutil.copytree(run, copy := tmp_path / "copy")
    (recipe_file := copy / "recipe.yaml").write_text(
        (run / "recipe.yaml").read_text().replace("max_steps: 24", "max_steps: 48")
    )
    checkpoint = copy / "checkpoints" / "step-00000024"
    state = checkpoint / files.STATE
    document = json.loads(state.read_text())
    document["trainer"]["should_stop"] = stopped
    record = files.write_durably(state, json.dumps(document).encode())
    files.write_manifest(checkpoint, {**files.read_manifest(checkpoint), files.STATE: record})
    assert "48" in recipe_file.read_text()
    assert main(["diarize", str(copy), str(held_out)]) == 0
    note = (
        f"note: the newest checkpoint of {copy} is at step 24 of 48; "
        f"unless it is training now, go on with phonate train {copy} --resume auto\n"
    )
    assert (note in capsys.readouterr().err) == told
    assert main(["diarize", str(checkpoint), str(held_out)]) == 0
    assert "note:" not in capsys.readouterr().err, "it was asked for"
    shutil.copytree(copy, other := tmp_path / "other")
    caplog.clear()
    for _ in range(2):
        phonate.load(other, "diarization")
    assert caplog.text.count(f"note: the newest checkpoint of {other} is at step 24 of 48") == told


def test_a_run_that_has_not_ended_says_which_checkpoint_is_used(run, held_out, tmp_path, capsys):
    """Where the best is not the newest."""
    shutil.copytree(run, copy := tmp_path / "copy")
    recipe = (copy / "recipe.yaml").read_text()
    (copy / "recipe.yaml").write_text(recipe.replace("max_steps: 24", "max_steps: 48"))
    newest = copy / "checkpoints" / "step-00000030"
    shutil.copytree(copy / "checkpoints" / "step-00000024", newest)
    metadata = json.loads((newest / files.METADATA).read_text())
    metadata |= {"global_step": 30, "is_best": False, "timestamp": "2100-01-01T00:00:00Z"}
    record = files.write_durably(newest / files.METADATA, json.dumps(metadata).encode())
    files.write_manifest(newest, {**files.read_manifest(newest), files.METADATA: record})
    note = (
        f"note: the best checkpoint of {copy}, of step 24, is used; its newest is at step 30 of 48; "
        f"unless it is training now, go on with phonate train {copy} --resume auto\n"
    )
    assert main(["diarize", str(copy), str(held_out)]) == 0
    assert capsys.readouterr().err.count(note) == 1
    listing.tell_of_unfinished.cache_clear()
    assert main(["checkpoints", "export", str(copy), "-o", str(tmp_path / "best")]) == 0
    assert capsys.readouterr().err.count(note) == 1
    assert main(["checkpoints", "export", str(copy), "--checkpoint", "best", "-o", str(tmp_path / "named")]) == 0
    assert "note:" not in capsys.readouterr().err, "it was asked for"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stream"], "uses later frames"),
        (["--stream", "--speakers", "2"], "--speakers can't be used with --stream"),
        (["--stream", "--max-speakers", "0"], "--max-speakers can't be used with --stream"),
        (["--speakers", "0"], "must be 1 or more"),
        (["--plot", "out.gif"], "the suffix must be one of"),
        (["-o", "nowhere/out.rttm"], "does not exist; create it first"),
        (["-o", "out.docx"], ".rttm, .TextGrid, .eaf"),
    ],
)
def test_bad_input_is_one_line(run, held_out, options, message, capsys):
    assert main(["diarize", str(run), str(held_out), *options]) == 2
    error = capsys.readouterr().err.splitlines()
    assert message in error[-1]


def test_labels_for_other_programs(run, held_out, tmp_path, capsys):
    assert main(["diarize", str(run), str(held_out), "--json"]) == 0
    turns = json.loads(capsys.readouterr().out)["turns"]
    assert main(["diarize", str(run), str(held_out), "-o", str(tmp_path / "out.TextGrid")]) == 0
    (found,) = read_turns(tmp_path / "out.TextGrid").values()
    assert sum(one.duration for one in found) == pytest.approx(
        sum(one["end"] - one["start"] for one in turns), abs=0.01
    )


@pytest.mark.slow
def test_a_stream_of_a_causal_model(tmp_path, held_out, capsys):
    corpus = write_meetings(tmp_path / "corpus", 3)
    (tmp_path / "recipe.yaml").write_text(recipe(corpus, 2, CAUSAL, decoding="{threshold: 0.4}"))
    assert main(["train", str(tmp_path / "recipe.yaml"), "--output", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    streamed = tmp_path / "stream.rttm"
    assert main(["diarize", str(tmp_path / "run"), str(held_out), "--stream", "-o", str(streamed)]) == 0
    assert capsys.readouterr().out.startswith("SPEAKER my_meeting 1 ")
    assert main(["diarize", str(tmp_path / "run"), str(held_out), "-o", str(tmp_path / "whole.rttm")]) == 0
    one, two = (read_rttm(tmp_path / f"{name}.rttm")["my_meeting"] for name in ("stream", "whole"))
    assert score(two, one).der == pytest.approx(0.0, abs=1e-6)


def test_help_needs_no_torch():
    code = (
        "import sys; from phonate.cli import main\n"
        "try: main(['diarize', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_training_on_meetings_without_labels_says_what_is_missing(tmp_path, capsys):
    (write_meetings(tmp_path / "corpus") / "meetings.rttm").unlink()
    arguments = [f"data.path={tmp_path / 'corpus'}", f"data.cache_dir={tmp_path / 'cache'}"]
    assert main(["train", "diarization", *arguments, "--output", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / 'corpus'}: put an RTTM file beside each meeting")
