"""`phonate score`."""

from __future__ import annotations

import json

import pytest

from phonate.cli import main
from phonate.data.annotations import SpeakerTurn, write_rttm, write_uem


@pytest.fixture
def files(tmp_path):
    reference = {
        "a": [SpeakerTurn(0.0, 4.0, "ann"), SpeakerTurn(3.0, 6.0, "bob")],
        "b": [SpeakerTurn(0.0, 2.0, "ann")],
    }
    write_rttm(tmp_path / "ref.rttm", reference)
    write_rttm(tmp_path / "hyp.rttm", {"a": [SpeakerTurn(0.0, 4.0, "1"), SpeakerTurn(4.0, 7.0, "2")]})
    return str(tmp_path / "ref.rttm"), str(tmp_path / "hyp.rttm")


def test_rows_total_and_conventions(files, capsys):
    assert main(["score", *files]) == 0
    warning, *lines = capsys.readouterr().out.splitlines()
    assert warning == "no turns in the hypothesis, all speech counted as missed: b"
    assert lines[1].split() == ["a", "28.57", "14.29", "14.29", "0.00", "25.00", "7.00", "2"]
    assert lines[2].split()[:3] == ["b", "100.00", "100.00"]
    assert lines[3].split()[:2] == ["total", "44.44"]
    assert len(lines[0]) <= 80
    assert lines[3].split()[-1] == "3"
    assert lines[5] == "speech, speakers: in the reference; who is in two recordings counts twice"
    text = "\n".join(lines)
    assert "collar: none" in text
    assert "overlap: scored for each speaker" in text
    assert "confusion over seconds of speech, each summed over speakers" in text
    assert "convention:" not in text


def test_a_single_recording_has_one_row(files, capsys, tmp_path):
    write_rttm(tmp_path / "one.rttm", {"a": [SpeakerTurn(0.0, 4.0, "ann"), SpeakerTurn(3.0, 6.0, "bob")]})
    assert main(["score", str(tmp_path / "one.rttm"), files[1]]) == 0
    _, row, empty, *_ = capsys.readouterr().out.splitlines()
    assert (row.split()[:2], empty) == (["a", "28.57"], "")


def test_a_hypothesis_far_beyond_the_labels_is_told(files, capsys, tmp_path):
    write_rttm(tmp_path / "ref.rttm", {"a": [SpeakerTurn(0.0, 4.0, "ann")]})
    write_rttm(tmp_path / "hyp.rttm", {"a": [SpeakerTurn(0.0, 4.0, "1"), SpeakerTurn(60.0, 70.0, "2")]})
    note = "the hypothesis goes on more than 10 s after the last label; if the rest is not labelled, give --uem: a"
    assert main(["score", *files]) == 0
    assert capsys.readouterr().out.splitlines()[0] == note
    write_uem(tmp_path / "ref.uem", {"a": [(0.0, 5.0)]})
    for others in (["--uem", str(tmp_path / "ref.uem")], ["--convention", "md-eval"]):
        assert main(["score", *files, *others]) == 0
        assert "goes on" not in capsys.readouterr().out


def test_the_collar_is_on_each_side(files, capsys, tmp_path):
    write_uem(tmp_path / "ref.uem", {"a": [(0.0, 9.0)]})
    assert (
        main(["score", *files, "--uem", str(tmp_path / "ref.uem"), "--collar", "0.5", "--skip-overlap", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert "pyannote.metrics: collar=1" in found["conventions"]["collar"]
    assert found["conventions"]["overlap"] == "not scored"
    assert found["not_in_uem"] == ["b"]
    # of 0 to 9 s are scored 0.5 to 2.5, 4.5 to 5.5 and 6.5 to 9
    assert found["total"]["scored"] == pytest.approx(5.5)
    assert (found["total"]["speech"], found["total"]["false_alarm"]) == (pytest.approx(3.0), pytest.approx(0.5))
    assert found["total"]["der"] == pytest.approx(0.5 / 3.0)


def test_published_figures_of_ami(recordings, capsys):
    folder = recordings / "diar_scoring_ami_dev"
    given = [str(folder / name) for name in ("ref.rttm", "sys_vbx.rttm")] + ["--uem", str(folder / "ref.uem")]
    for options, published in (
        ([], "16.33"),
        (["--collar", "0.25"], "9.68"),
        (["--collar", "0.25", "--skip-overlap"], "1.56"),
    ):
        assert main(["score", *given, *options]) == 0
        total = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("total"))
        assert total.split()[1] == published


@pytest.mark.parametrize("option", [["--collar", "-1"], ["--uem", "none.uem"]])
def test_bad_input_is_one_line(files, option, capsys):
    assert main(["score", *files, *option]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("option", [["--skip-overlap"], ["--uem", "ref.uem"], ["--convention", "md-eval"]])
def test_what_words_have_no_use_for_is_refused(files, option, capsys):
    assert main(["score", *files, "--words", *option]) == 2
    assert option[0] in capsys.readouterr().err


def test_no_torch(files):
    import subprocess
    import sys

    code = f"import sys; from phonate.cli import main; main(['score', *{files!r}]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_labels_of_other_programs_and_conventions(files, capsys, tmp_path):
    (tmp_path / "a.txt").write_text("0\t4\t1\n4\t7\t2\n")
    (tmp_path / "b.txt").write_text("0\t2\t1\n")
    reference = tmp_path / "ref.rttm"
    assert main(["score", str(reference), str(tmp_path), "--json"]) == 2  # RTTM and Audacity's labels are in it
    folder = tmp_path / "labels"
    folder.mkdir()
    for name in "ab":
        (tmp_path / f"{name}.txt").rename(folder / f"{name}.txt")
    capsys.readouterr()
    assert main(["score", str(reference), str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["der"] == pytest.approx(2.0 / 9.0)
    with reference.open("a") as file:
        file.write("NON-LEX a 1 1 0.5 <NA> laugh ann <NA> <NA>\n")
    assert main(["score", str(reference), str(folder)]) == 0
    assert "--convention md-eval leaves them out): a" in capsys.readouterr().out
    assert main(["score", str(reference), str(folder), "--convention", "md-eval"]) == 0
    text = capsys.readouterr().out
    assert "convention: md-eval" in text
    assert "NON-LEX" not in text


def test_words_of_speakers_in_any_labels(capsys, tmp_path):
    (tmp_path / "ref.stm").write_text(
        "a 1 ann 0 2 <o> Good morning everybody.\na 1 bob 1 3 how are you\na 1 ann 4 5 { fine / good } (uh) thanks\n"
    )
    (tmp_path / "a.vtt").write_text(
        "WEBVTT\n\n00:00.000 --> 00:02.000\n<v 2>good morning\n\n00:01.000 --> 00:03.000\n<v 1>how are you\n\n"
        "00:04.000 --> 00:05.000\n<v 1>fine thanks\n"
    )
    given = ["score", str(tmp_path / "ref.stm"), str(tmp_path / "a.vtt"), "--words"]
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recordings"]["total"]
    assert (found["words"], found["word_edits"], found["speaker_edits"]) == (8, 1, 5)
    assert found["cpwer"] == pytest.approx(5 / 8)
    assert main(given) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[1].split()[:2] == ["a", "12.50"]
    assert "total" not in shown  # of one recording it would be the same
    assert main([*given, "--collar", "-1"]) == 2
    capsys.readouterr()
    (tmp_path / "a.vtt").write_text("WEBVTT\n\n00:00.000 --> 00:02.000\ngood morning\n")
    assert main([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recordings"]["a"]["cpwer"] is None


def test_words_of_plain_texts_by_the_names_of_their_files(capsys, tmp_path):
    for folder, first in (("ref", "I am here: now"), ("hyp", "SPEAKER_00: I am\n\nSPEAKER_01: here now")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(f"\ufeff{first}\n", encoding="utf-8")
    (tmp_path / "ref" / "b.txt").write_text("two words")
    (tmp_path / "hyp" / "b.txt").write_text("")  # as of a recording in which nobody speaks
    (tmp_path / "words.ctm").write_text("other 1 0 1 I\nother 1 1 1 am\n")

    def scores(reference, hypothesis):
        given = [str(tmp_path / reference), str(tmp_path / hypothesis)]
        assert main(["score", "--words", *given, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["recordings"]
        return {name: (one["word_edits"], one["words"], one["cpwer"]) for name, one in rows.items()}

    assert scores("ref", "hyp") == {"a": (0, 4, None), "b": (2, 2, None), "total": (2, 6, None)}
    assert scores("ref/a.txt", "words.ctm")["total"] == (2, 4, None)
    assert scores("ref/b.txt", "hyp/a.txt")["total"] == (4, 2, None)
    assert main(["score", *(str(tmp_path / folder / "a.txt") for folder in ("ref", "hyp"))]) == 2  # who says it?
