"""The commit, the branch and the state of a git work tree, read without running anything that the repository names.

A repository's own configuration can name programs (`core.fsmonitor`, filters, diff drivers, hooks), which even
`git status` runs. So HEAD and refs are read as files, and the files are compared with the index by a git whose
repository is an empty one of ours, without other configuration.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from phonate.compute.system import open_regular

_LARGEST = 32 << 20
"""Most bytes of a file of the repository that are read."""
_OBJECT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CONFIG = "[core]\n\trepositoryformatversion = 1\n\tbare = false\n[extensions]\n\tobjectformat = {hash}\n"
_SECONDS = 30.0


@dataclass(frozen=True)
class WorkTree:
    """What a work tree is at."""

    commit: str | None
    """Object id of HEAD. None before the first commit."""
    branch: str | None
    """Short name. None with a detached HEAD."""
    dirty: bool | None
    """Whether tracked files differ from the commit. None when that can't be found out (git is not installed)."""


def work_tree(folder: Path) -> WorkTree | None:
    """The work tree that `folder` lies in; None outside a repository."""
    for root in (folder.absolute(), *folder.absolute().parents):
        if (folders := _git_folder(root)) is not None:
            break
    else:
        return None
    own, common = folders
    head = _text(own / "HEAD")
    if head is None:
        return None
    reference = head.removeprefix("ref: ").strip() if head.startswith("ref: ") else None
    commit = head.strip() if reference is None else _resolve(own, common, reference)
    if commit is not None and not _OBJECT_ID.fullmatch(commit):
        return None
    branch = None if reference is None else reference.removeprefix("refs/heads/")
    return WorkTree(commit, branch, None if commit is None else _dirty(root, own, common, commit))


def _git_folder(root: Path) -> tuple[Path, Path] | None:
    """The work tree's own git folder, and the one that it shares with other work trees."""
    own = root / ".git"
    if own.is_file():  # of a linked work tree, or a submodule
        target = _text(own)
        if target is None or not target.startswith("gitdir: "):
            return None
        own = root / target.removeprefix("gitdir: ").strip()
    if not own.is_dir():
        return None
    shared = _text(own / "commondir")
    return own, own if shared is None else own / shared.strip()


def _resolve(own: Path, common: Path, reference: str) -> str | None:
    """The object id of a reference; None when it has none."""
    if ".." in Path(reference).parts or reference.startswith("/"):
        return None
    for folder in (own, common):
        if (content := _text(folder / reference)) is not None:
            return content.strip()
    for line in (_text(common / "packed-refs") or "").splitlines():
        if line.endswith(f" {reference}"):
            return line.split(" ", 1)[0]
    return None


def _text(path: Path) -> str | None:
    """A small text file; None when it is missing, or something else."""
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST + 1)
    except OSError:  # there is no such file: the caller looks elsewhere
        return None
    return content.decode("utf-8", "replace") if len(content) <= _LARGEST else None


def _dirty(root: Path, own: Path, common: Path, commit: str) -> bool | None:
    with tempfile.TemporaryDirectory(prefix="phonate-git-") as name:
        empty = Path(name)
        for folder in ("objects", "refs"):
            (empty / folder).mkdir()
        (empty / "HEAD").write_text("ref: refs/heads/none\n")
        (empty / "config").write_text(_CONFIG.format(hash="sha1" if len(commit) == 40 else "sha256"))
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
            "GIT_DIR": str(empty),
            "GIT_WORK_TREE": str(root),
            "GIT_INDEX_FILE": str(own.resolve() / "index"),
            "GIT_OBJECT_DIRECTORY": str(common.resolve() / "objects"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
        }
        # Submodules have a configuration of their own, and are left out.
        options = ["--quiet", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all"]
        try:
            code = subprocess.run(
                ["git", "diff", *options, commit, "--"],
                cwd=root,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            ).returncode
        except (OSError, subprocess.SubprocessError):  # git is not installed, or takes too long
            return None
    return {0: False, 1: True}.get(code)
