"""The table of commands and their parsers, each filled in only when its command is called."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

# ------------------------------------------------------------------------------------------ Values of options


def local_path(text: str) -> Path:
    """The path `text`. Raises ArgumentTypeError for an address, of which a path would lose a slash."""
    from phonate.compute.remote import on_disk
    from phonate.config.errors import InputError

    try:
        return on_disk(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def language_code(text: str) -> str:
    """The code of the language `text`, which may be its name."""
    from phonate.config.language_codes import code_of

    return code_of(text)


# ------------------------------------------------------ Options of the commands that use a trained model

_NAMES = ("dtype", "codec", "base")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """`--dtype`, `--codec` and `--base`, for voice cloning."""
    parser.add_argument(
        "--dtype",
        choices=("auto", "fp32", "bf16", "fp16", "int8"),
        help="cloning: type of the weights (default: as they are stored)",
    )
    parser.add_argument("--codec", metavar="DIR", help="cloning: a folder with the codec, or its name on the hub")
    add_base_option(parser)


def add_base_option(parser: argparse.ArgumentParser) -> None:
    """`--base`."""
    parser.add_argument(
        "--base",
        metavar="DIR",
        help="a folder with the model that adapters were trained on, or its name on the hub (default: as in training)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """`--device`, for commands that use a trained model."""
    parser.add_argument("--device", metavar="D", default="cpu", help="cpu (default), cuda:0, mps")


def add_vocoder(parser: argparse.ArgumentParser) -> None:
    """`--vocoder`, for models that predict mels."""
    parser.add_argument(
        "--vocoder", metavar="RUN", help="a run of the task vocoder, or griffin_lim for none (default: the recipe's)"
    )


def model_options(args: argparse.Namespace) -> dict[str, str | None]:
    """The options of `add_model_options`, as `phonate.load` takes them."""
    return {name: getattr(args, name) for name in _NAMES}


# --- The commands. A command is a function `NAME(args) -> exit code`, beside it `NAME_arguments(parser)`

Command = Callable[[argparse.Namespace], int]

COMMANDS = {
    "demo": ("phonate.cli.training", "train, interrupt, resume and evaluate a small voice, end to end"),
    "session": ("phonate.cli.training", "detect the device and the data, and train a model"),
    "train": ("phonate.cli.training", "train a recipe into a run folder"),
    "speak": ("phonate.cli.speech", "synthesise speech from text"),
    "predict": ("phonate.cli.speech", "write the mels that a voice predicts, to train a vocoder on"),
    "clone": ("phonate.cli.speech", "speak a text in the voice of a recording"),
    "convert": ("phonate.cli.conversion", "convert a recording to another voice"),
    "generate": ("phonate.cli.language", "generate text with a trained language model"),
    "transcribe": ("phonate.cli.recordings", "transcribe a recording"),
    "align": ("phonate.cli.recordings", "tell when the words of texts are said in recordings"),
    "diarize": ("phonate.cli.recordings", "find out who speaks when in a recording"),
    "score": ("phonate.cli.runs", "error rates of a diarization or a transcript"),
    "serve": ("phonate.cli.serving", "serve models over HTTP by OpenAI's protocol, with a page"),
    "evaluate": ("phonate.cli.runs", "score a run on held-out recordings, beside baselines"),
    "data": ("phonate.cli.data", "check, prepare and describe a corpus"),
    "resources": ("phonate.cli.training", "list the GPUs, cores and memory available for training"),
    "explain": ("phonate.cli.training", "print every value of a recipe and where it comes from"),
    "replay": ("phonate.cli.runs", "compute one step of a run again: its loss and its batch"),
    "report": ("phonate.cli.runs", "write an HTML report of a run: curves, audio and figures"),
    "checkpoints": ("phonate.cli.runs", "list, verify, prune, export, push, merge and compare them"),
    "new": ("phonate.cli.training", "scaffold a loss, callback, corpus format or task with its test"),
}
"""Command -> (its module, imported only when one of its commands is called; one-line help)."""


EXAMPLES = (
    "demo --data my_voice",
    "session --voice-data-dir recordings",
    "resources --json",
    "train speech data.path=my_voice",
    "speak 'Good morning.' -o said.wav",
    "predict runs/speech -o mels",
    "clone runs/cloning --reference me.wav --text Hello. -o hi.wav",
    "convert runs/conversion-whisper somebody.wav -o anna.wav",
    "generate runs/language 'Once upon a time'",
    "transcribe meeting.wav -o meeting.srt",
    "align talk.wav talk.txt -o talk.srt",
    "diarize meeting.wav -o meeting.rttm",
    "score by_hand.rttm meeting.rttm",
    "serve base/voice",
    "evaluate runs/speech",
    "data check my_voice",
    "data prepare my_voice",
    "data describe my_voice",
    "explain speech",
    "replay runs/speech --step 100",
    "report runs/speech",
    "checkpoints list runs/speech",
    "checkpoints verify runs/speech",
    "checkpoints prune runs/speech --keep 2",
    "checkpoints export runs/speech --format sherpa -o voice_sherpa",
    "checkpoints merge runs/cloning -o merged",
    "checkpoints push runs/speech hf:me/my-voice",
    "checkpoints compare runs/speech 100 150",
    "new loss my_loss",
)
"""How a command is called, in its help and where it was called without its arguments: the first line that begins as
that did."""


_EXAMPLE = "Example: "


def described(text: str, prog: str) -> str:
    """The description `text` of the parser `prog`, with an example behind its first paragraph."""
    first, *others = text.split("\n\n")
    return "\n\n".join([first, f"{_EXAMPLE}{example(prog, ())}", *others])


def example(prog: str, words: Sequence[str]) -> str:
    """The first of `EXAMPLES` of the parser `prog` that has the first of the words, or else the first; "" for none."""
    own = [one for one in (f"phonate {line}" for line in EXAMPLES) if one.startswith(f"{prog} ")]
    return next((one for one in own for word in words[:1] if one.startswith(f"{prog} {word} ")), next(iter(own), ""))


# -------- Parsers for the commands of the static table, each filled in only when its command is called


_MISSING = "the following arguments are required"


class Help(argparse.HelpFormatter):
    """Paragraphs as wide as the terminal; that of an example is not broken."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(one if one.startswith(_EXAMPLE) else fill(one, width, indent) for one in text.split("\n\n"))


class Parser(argparse.ArgumentParser):
    """Options are never abbreviated, and a mistake is one line and exit code 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self.words: Sequence[str] | None = None
        """What is parsed. None: a parser above knows it."""
        self.row: Sequence[str] = ()
        """The names of the arguments that must stand in a row."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, with the option or the value that comes near, or the recipe option that a flag stands
        for elsewhere, and exit."""
        if message.startswith(_MISSING) and self.words is not None and not self.words:
            # Of options and positionals that may be mixed, argparse looks for the former first and names them alone.
            needed = [one for one in self._actions if one.required]
            names = ("/".join(one.option_strings) or str(one.metavar or one.dest) for one in needed)
            message = f"{_MISSING}: {', '.join(names)}"
        elif message.startswith(_MISSING) and self._subparsers is None:
            message = self._in_order(message)
        meant = _option_of(message) if self.takes_overrides else None
        near = _nearest_flag(message, self._flags())
        mend = f"write {meant}" if meant else f"did you mean {near}?" if near else self._taken(message)
        parts = [self._with_values(_in_words(message)), mend]
        said = "".join(part + (" " if part.endswith("?") else "; ") for part in parts if part)
        unclear = message.startswith(_MISSING) or re.match(r"argument (action|ACTION): invalid choice", message)
        shown = example(self.prog, self.words or ()) if unclear else ""
        self.exit(2, f"error: {said}see {self.prog} --help{shown and f'; for example: {shown}'}\n")

    def _in_order(self, message: str) -> str:
        """A message about missing arguments, of which argparse names the last ones, though any may have been forgotten:
        with all that stand in a row, in their order."""
        row = self.row or self.required_row()
        missing = message.removeprefix(f"{_MISSING}: ").split(", ")
        if not set(row) & set(missing):  # it names options that are missing alone
            missing = [*row[self._given() :], *missing]
        lacking = sum(name in row for name in missing)
        if not 0 < lacking < len(row):
            return f"{_MISSING}: {', '.join(missing)}"
        others = "".join(f", {name}" for name in missing if name not in row)
        return f"{_MISSING}: {' '.join(row)}, of which {lacking} {'is' if lacking == 1 else 'are'} missing{others}"

    @property
    def takes_overrides(self) -> bool:
        """Whether words such as `data.path=my_voice` may follow."""
        return any(action.dest == "overrides" for action in self._actions)

    def required_row(self) -> list[str]:
        """The arguments without a name that must be given, in their order."""
        return [
            str(one.metavar or one.dest)
            for one in self._actions
            if one.required and not one.option_strings and one.nargs in (None, "+") and not one.choices
        ]

    def _given(self) -> int:
        """How many of the words that are parsed are no options, nor their values."""
        words = list(self.words or ())
        actions = [self._option_string_actions.get(word.partition("=")[0]) for word in words]
        valued = [
            one is not None and one.nargs is None and "=" not in word for one, word in zip(actions, words, strict=True)
        ]
        return sum(
            not (value or (word.startswith("-") and word != "-"))
            for word, value in zip(words, [False, *valued], strict=False)
        )

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Exit where `words` have an option that is none: argparse would first miss what it stands for."""
        if self._subparsers is not None:
            return
        for word, value in zip(words, [*words[1:], "-"], strict=False):
            if word == "--":
                return
            if re.match(r"--[a-z][^\s=]*(=|$)", word) and word.partition("=")[0] not in self._option_string_actions:
                takes_value = "=" not in word and re.match("[^-=][^=]*$", value)
                self.error(f"unrecognized arguments: {word}" + (f" {value}" if takes_value else ""))
            name, equals, value = word.partition("=")
            flag = f"--{name.replace('_', '-')}"
            action = self._option_string_actions.get(flag)
            if equals and action is not None and self.takes_overrides:
                self.error(f"{word}: write {flag if action.nargs == 0 else f'{flag} {value}'}")

    def _taken(self, message: str) -> str:
        """What became of words: those of a text without quotes are too many; and an option with an optional value took
        a file for it, where an argument is missing."""
        if re.match("unrecognized arguments: [^-]", message) and any(
            one.dest in ("text", "prompt") for one in self._actions
        ):
            return "put a text of several words in quotes"
        if not message.startswith(_MISSING):
            return ""
        optional = {flag for action in self._actions if action.nargs == "?" for flag in action.option_strings}
        pairs = pairwise(self.words or ())
        taken = [(flag, value) for flag, value in pairs if flag in optional and os.path.isfile(value)]
        return f"{taken[0][0]} took {taken[0][1]} for its value: write it in front of {taken[0][0]}" if taken else ""

    def _with_values(self, message: str) -> str:
        """A message about arguments that are missing, with the values that they can have."""
        for action in self._actions:
            if message == f"{'/'.join(action.option_strings)}: expected one argument":
                return f"{message}, {action.metavar or ' or '.join(action.choices or ['a value'])}"
            if action.choices and not action.option_strings and message.startswith("the following arguments are"):
                name = str(action.metavar or action.dest)
                message = message.replace(f": {name}", f": {name} ({', '.join(map(str, action.choices))})", 1)
        return message

    def _flags(self) -> list[str]:
        """All options, those of sub-commands, too."""
        choices = getattr(self._subparsers, "_group_actions", ())
        within = [flag for action in choices for parser in action.choices.values() for flag in parser._flags()]
        return [*self._option_string_actions, *within]


_SYNONYMS = {"--voice": ("--speaker", "--reference"), "--target": ("--speaker",)}
"""What an option is called elsewhere -> what it may be called here, the first that the command has."""


def _nearest_flag(message: str, flags: Sequence[str]) -> str | None:
    unknown = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
    if unknown is None:
        return None
    called_here = [flag for flag in _SYNONYMS.get(unknown[1], ()) if flag in flags]
    return next(iter(called_here or difflib.get_close_matches(unknown[1], flags, n=1)), None)


def _in_words(message: str) -> str:
    """A message of argparse without the words of its code."""
    if wrong := re.fullmatch(r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
        from phonate.config.registry import listed

        choices = wrong[3].replace("'", "").split(", ")
        near = difflib.get_close_matches(wrong[2], choices, n=1)
        what = f"{wrong[1]} {wrong[2]}" if wrong[1].startswith("-") else f"{wrong[2]!r}"
        return f"{what}: did you mean {near[0]}?" if near else f"{what}: choose from {listed(choices)}"
    if wrong := re.fullmatch(r"argument (.+?): invalid (int|float) value: '(.*)'", message, re.DOTALL):
        return f"{wrong[1]} {wrong[3]}: must be a {'whole ' if wrong[2] == 'int' else ''}number"
    return message.removeprefix("argument ")


def _option_of(message: str) -> str | None:
    """The override that the flag in argparse's message means, such as training.epochs=5 for --epochs 5."""
    from phonate.config.settings import ELSEWHERE, options
    from phonate.training.settings import TrainingSettings

    flag = re.match(r"unrecognized arguments: --([a-z][\w-]*)(?:[ =]([^\s=-][^\s=]*)(?: |$))?", message)
    if flag is None:
        return None
    name, value = flag[1].replace("-", "_"), flag[2] or "..."
    named = [option.key for option in options(TrainingSettings, ("training",)) if option.path[-1] == name]
    option = ELSEWHERE.get(name) or min(named, key=len, default=None)
    return option and f"{option}={value}"


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from phonate import __version__

        print(f"phonate {__version__}")
        parser.exit()


class _Completion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any) -> None:
        import shtab

        print(shtab.complete(_complete_parser(), values))
        parser.exit()


def top_parser() -> Parser:
    """The parser of everything before the command's own arguments."""
    width = max(map(len, COMMANDS)) + 2
    listed = "\n".join(f"  {name:<{width}}{text}" for name, (_, text) in COMMANDS.items())
    parser = Parser(
        prog="phonate",
        usage="phonate [options] COMMAND ...",
        description="Train voice models: one trainer, one command line, one recipe file.",
        epilog=f"commands:\n{listed}\n\nRun 'phonate COMMAND --help' for the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(traceback=False, plugin=[])
    _add_globals(parser)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        choices=("bash", "zsh", "fish", "powershell", "tcsh"),
        metavar="SHELL",
        help="print the completion script for bash, zsh, fish, powershell or tcsh",
    )
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_globals(parser: argparse.ArgumentParser) -> None:
    """Options that stand before or behind the command."""
    parser.add_argument(
        "--traceback",
        action="store_true",
        default=argparse.SUPPRESS,
        help="show Python's traceback of an error",
    )
    parser.add_argument(
        "--plugin",
        action="append",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="run a Python file that registers losses, callbacks, tasks, ... (repeatable)",
    )


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """RECIPE and its overrides, for commands that take them."""
    from phonate.config.documents import shipped

    parser.add_argument(
        "recipe", metavar="RECIPE", help=f"a recipe file, a run's folder, or a shipped recipe: {', '.join(shipped())}"
    )
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", default=[], help="options that override the recipe's"
    )


def fill(parser: argparse.ArgumentParser, command: str) -> Command:
    """Import the module of `command`, give its arguments to `parser`, and return the command."""
    from inspect import getdoc  # takes long

    module = importlib.import_module(COMMANDS[command][0])
    function: Command = getattr(module, command)
    parser.description = described(getdoc(function) or "", parser.prog)
    parser.formatter_class = Help
    getattr(module, f"{command}_arguments")(parser)
    _add_globals(parser)
    return function


WEIGHTS = "weights"
"""The form of `checkpoints export` that every task has."""


def within(action: str) -> list[str]:
    """The commands, with their words before it, that have the action, such as `data check`."""
    found = []
    for command in ("data", "checkpoints"):
        parser = Parser(prog=f"phonate {command}")
        fill(parser, command)
        choices = [one for known in parser._actions if not known.option_strings for one in known.choices or ()]
        found += [f"{command} {action}"] * (action in choices)
    return found


def parse_command(command: str, rest: Sequence[str], namespace: argparse.Namespace) -> Command:
    """Parse the command's own arguments into `namespace`; returns the command."""
    parser = Parser(prog=f"phonate {command}")
    function = fill(parser, command)
    parser.words, parser.row = rest, parser.required_row()  # argparse hides them while it looks for options
    parser.refuse_unknown(rest)
    if parser._subparsers is None:  # argparse can't mix options and positionals around sub-commands
        parser.parse_intermixed_args(rest, namespace)
    else:
        parser.parse_args(rest, namespace)
    return function


def _complete_parser() -> Parser:
    """Every command with all of its arguments, for the completion script."""
    parser = Parser(prog="phonate")
    _add_globals(parser)
    commands = parser.add_subparsers(parser_class=Parser)
    for name, (_, text) in COMMANDS.items():
        fill(commands.add_parser(name, help=text), name)
    return parser


def add_known(parser: argparse.ArgumentParser) -> None:
    """Add --known."""
    parser.add_argument(
        "--known",
        metavar="NAME=FILE",
        action="append",
        help="a recording of a person, whose name the speaker with that voice gets; may be given several times",
    )


def known_speakers(pairs: Sequence[str] | None) -> dict[str, str]:
    """The recordings of --known by name. Raises InputError for what is no NAME=FILE."""
    from phonate.config.errors import InputError

    known: dict[str, str] = {}
    for pair in pairs or ():
        name, _, path = pair.partition("=")
        if not name.strip() or not path:
            raise InputError(f"--known {pair}: write NAME=FILE, such as anna=anna.wav")
        if name in known:
            raise InputError(f"--known {name}: is given twice; join their recordings into one file, or choose one")
        known[name] = path
    return known
