"""Print every value of a recipe with where it came from.

The first of these that sets a value counts: command line, recipe, preset of the size, default. What the language or the
recordings decide is shown as training will decide it. What training would refuse before it reads the recordings is
refused. Options that you must set, such as data.path, may be left out here: they are shown as required.
"""

from __future__ import annotations

import argparse
import json

from phonate.cli.parsing import add_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate explain`."""
    add_recipe(parser)
    parser.add_argument("--describe", action="store_true", help="say what each option means (in YAML: as comments)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print as JSON")
    form.add_argument("--yaml", action="store_true", help="print the complete recipe, ready to be trained")
    form.add_argument("--schema", action="store_true", help="print the JSON schema of such recipes, for editors")


def run(args: argparse.Namespace) -> int:
    """Print in the form asked for."""
    from phonate.cli.output import print_json, print_table
    from phonate.config.errors import InputError
    from phonate.workflows.explain import commented_yaml, explain, schema
    from phonate.workflows.plan import plan

    if args.describe and args.schema:
        raise InputError("--describe: has no meaning with --schema; leave it out, or use --json")
    if args.schema:
        print_json(schema(args.recipe, args.overrides))
        return 0
    planned = plan(args.recipe, args.overrides, incomplete=not args.yaml)  # with --yaml it is to be trained
    planned.check()
    resolved = planned.resolved
    if args.yaml:
        print(commented_yaml(resolved) if args.describe else resolved.to_yaml(), end="")
        return 0
    values = explain(resolved)
    if args.json:
        fields = ("value", "origin", "description") if args.describe else ("value", "origin")
        print_json({found.key: {name: getattr(found, name) for name in fields} for found in values})
        return 0
    columns = 4 if args.describe else 3
    rows = [[v.key, json.dumps(v.value, ensure_ascii=False), v.origin, v.description][:columns] for v in values]
    print_table(rows, ["option", "value", "from", "meaning"][:columns])
    return 0
