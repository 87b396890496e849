"""What a stranger installs: permissive requirements, pinned versions, light imports, rooms in order."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import PackageNotFoundError, distribution, distributions, metadata, packages_distributions
from pathlib import Path

import grimp
import pytest
import soundfile

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PERMISSIVE = re.compile(r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|matplotlib|SIL OFL", re.IGNORECASE)


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found
    return re.sub(r"[_.]", "-", found[0].lower())


INSTALLED_BY_MAKE = ("distillmos", "xls-r-sqa")
"""Judges that require torchaudio, installed without it."""

WEAK_COPYLEFT = {"soxr": "LGPL-2.1-or-later", "shtab": "MPL-2.0"}
"""Named in the README: used as they come, as libraries that can be replaced."""


@pytest.mark.parametrize("requirement", PROJECT["dependencies"], ids=name_of)
def test_required_packages_have_permissive_licences(requirement: str) -> None:
    name = name_of(requirement)
    found = metadata(name)
    stated = [found.get("License-Expression", ""), found.get("License", "")[:200], *found.get_all("Classifier", [])]
    licences = [text for text in stated if text and ("License" in text or "::" not in text)]
    if name in WEAK_COPYLEFT:
        assert WEAK_COPYLEFT[name] in licences
        readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
        assert f"{name} ({WEAK_COPYLEFT[name].removesuffix('-or-later')})" in readme
    else:
        assert any(PERMISSIVE.search(text) for text in licences), licences
        assert not any(re.search(r"GPL|MPL", text) for text in licences), licences


def test_every_dependency_has_an_exact_version() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {name_of(line) for line in lines}
    assert all(re.fullmatch(r"[\w.-]+==[\w.!-]+(; python_version [!=]= '3\.\d+')?", line) for line in lines)
    cuda = {name for name in pinned if name.startswith("nvidia")} - {"nvidia-ml-py"}  # which is Python only
    assert not cuda
    assert "torchaudio" not in pinned
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["espeak"], *extras["eval"], *extras["onnx"], *extras["dev"]]
    assert {name_of(one) for one in wanted} <= pinned


def test_every_import_is_declared() -> None:
    """Whatever the package imports is one of its requirements or extras, not only a requirement of another package."""
    extras = [one for extra in PROJECT["optional-dependencies"].values() for one in extra]
    declared = {name_of(one) for one in [*PROJECT["dependencies"], *extras]} | set(INSTALLED_BY_MAKE)
    homes = dict(packages_distributions())
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module).partition(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {"phonate"}
    assert {"numpy", "torch"} <= foreign
    homes["pydantic_core"] = ["pydantic"]  # its own compiled half, of one exact version
    undeclared = {name for name in foreign if not {name_of(one) for one in homes.get(name, [name])} & declared}
    assert not undeclared


def test_the_espeak_library_is_never_required() -> None:
    assert not any("espeak" in one or "piper" in one for one in PROJECT["dependencies"])


def test_the_floors_of_the_house_hold() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Not later either, in a function."""
    graph = grimp.build_graph("phonate", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize(
    "code",
    [
        "import phonate",
        "import phonate.cli; phonate.cli.main(['--help'])",
        "import phonate.config.resolve, phonate.training.settings",
    ],
)
def test_heavy_packages_are_imported_only_when_they_are_used(code: str) -> None:
    heavy = (
        "{'torch', 'lhotse', 'librosa', 'accelerate', 'transformers', 'tensorboard', 'matplotlib', 'scipy', 'numpy'}"
    )
    check = f"import sys; found = {heavy} & set(sys.modules); assert not found, found"
    ran = subprocess.run([sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_training_imports_nothing_slow_beside_torch() -> None:
    """Each takes a part of every start; torch's compiler a second or two."""
    code = """
import sys
import phonate.workflows.train
from phonate.config.tasks import TASKS, task_class
slow = {'scipy', 'av', 'librosa', 'matplotlib', 'transformers', 'onnxruntime', 'torch._dynamo'}
for name in sorted(TASKS.names(), key=lambda name: name != "speech"):
    task_class(name)
    early = sys.modules.keys() & (slow if name == "speech" else {"torch._dynamo"})
    assert not early, (name, early)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_only_the_command_line_prints_and_exits() -> None:
    for path in (ROOT / "src" / "phonate").rglob("*.py"):
        if "cli" not in path.parts:
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"^\s*print\(|sys\.exit\(", text, re.MULTILINE), path


@pytest.mark.parametrize(
    ("pattern", "homes"),
    [
        (r"\.WhisperModel\(", {"audio/whisper.py"}),
        (r"transcriber\.transcript\(", {"workflows/datasets/from_recordings.py"}),
        (r"\bdescribe_blocks\(", {"audio/quality.py", "data/corpora/validation.py"}),
        (r"\bvoice_score\(", {"audio/quality.py", "data/voices.py"}),
        (
            r"torch\.stft\(",
            {"audio/augmentation.py", "audio/griffin_lim.py", "nn/losses.py", "tasks/cloning/task.py"},
        ),
        (r"def (resume_conflict|counts)\(self, (exported|batch)", set()),
        (r"getattr\((getattr\()*(self\.)?task,", set()),
        (r"NamedTemporaryFile\(", set()),  # which can't be opened by its name on Windows
    ],
)
def test_what_is_done_in_one_place(pattern: str, homes: set[str]) -> None:
    package = ROOT / "src" / "phonate"
    files = {str(path.relative_to(package)): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert {name for name, text in files.items() if re.search(pattern, text)} == homes


def test_the_ci_script_is_ready_to_run() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o100
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


ALLOWED_MEGABYTES = 400
"""Of required packages beside torch and what torch requires."""

USE = """
import sys
from pathlib import Path
import soundfile
import phonate
from phonate.cli import main

voice = phonate.load("base/voice")
for number, text in enumerate(["Good morning to you all.", "The train is late again today.", "We had rice and beans.",
                               "She sells shells by the sea.", "It rained the whole week."]):
    folder = Path("clips") / ("ann" if number % 2 else "ben")
    folder.mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / f"{number}.wav", voice.speak(text), voice.sample_rate)
    (folder / f"{number}.txt").write_text(text)
few = ["data.path=clips", "training.max_steps=1", "size=tiny"]
for command in (
    ["speak", "Hello.", "-o", "hello.wav"],
    ["train", "speech", *few, "--output", "runs/speech"],
    ["train", "conversion", *few, "--output", "runs/conversion"],
    ["train", "recognition", *few, "--output", "runs/recognition"],
    ["train", "vocoder", *few, "--output", "runs/vocoder"],
    ["evaluate", "runs/recognition"],
    ["evaluate", "runs/speech"],
    ["report", "runs/speech"],
):
    code = main(command)
    assert code == 0, (code, command)
"""


def torch_alone(folder: Path) -> None:
    """A folder with links to the installed torch and what torch requires, and to nothing else."""
    folder.mkdir()
    waiting, names = ["torch"], set()
    while waiting:
        name = waiting.pop()
        if name in names:
            continue
        names.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # for other systems
            continue
        waiting += [name_of(one) for one in found.requires or () if "extra ==" not in one]
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(found.locate_file(top))).resolve())


def disk_megabytes(packages: Path) -> dict[str, float]:
    """What each package in a folder takes on disk (1024^2 bytes, as du counts)."""
    sizes = {}
    for found in distributions(path=[str(packages)]):
        files = {Path(str(file.locate())) for file in found.files or ()}
        sizes[name_of(found.name)] = sum(file.stat().st_blocks for file in files if file.is_file()) * 512 / 2**20
    return sizes


@pytest.mark.slow
def test_a_plain_install_speaks_trains_and_reports(tmp_path: Path) -> None:
    """The wheel and what it requires today: nothing of the checkout, of an extra or of constraints.txt."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src/phonate", source / "src/phonate", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "wheel", source], cwd=tmp_path, check=True
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = tmp_path.glob("venv/lib/python*/site-packages")
    torch_alone(tmp_path / "torch")
    (packages / "torch.pth").write_text(f"{tmp_path / 'torch'}\n")
    python = tmp_path / "venv/bin/python"
    install = [*pip, "--python", python, "install", "--no-compile"]  # only what is used is compiled, when it is used
    subprocess.run([*install, *(tmp_path / "wheel").iterdir()], cwd=tmp_path, check=True)

    installed = {file.relative_to(packages) for file in (packages / "phonate").rglob("*.*")}
    written = {file.relative_to(source / "src") for file in (source / "src/phonate").rglob("*.*")}
    assert written <= installed
    sizes = disk_megabytes(packages)
    del sizes["phonate"]
    report = f"{sum(sizes.values()):.0f} MB: " + ", ".join(
        f"{name} {size:.1f}" for name, size in sorted(sizes.items(), key=lambda one: -one[1])
    )
    print(report)
    assert {"numpy", "av"} <= set(sizes)
    assert sum(sizes.values()) <= ALLOWED_MEGABYTES, report

    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran = subprocess.run([python, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert soundfile.info(tmp_path / "hello.wav").duration > 0.3
    assert (tmp_path / "runs/speech/report.html").stat().st_size > 10_000


def test_an_older_python_is_refused_before_anything_is_downloaded() -> None:
    least = PROJECT["requires-python"].removeprefix(">=")
    major, minor = map(int, least.split("."))
    code = f"import sys; sys.version_info = ({major}, {minor - 1}, 13); sys.argv = ['setup.py', '--name']\n"
    code += f"exec(compile(open({str(ROOT / 'setup.py')!r}).read(), 'setup.py', 'exec'))"
    refused = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"phonate needs Python {least} or newer; this is ")
