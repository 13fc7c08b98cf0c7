"""`python -m rekindle.torch verify plan.json train_step.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rekindle.errors import RekindleError
from rekindle.torch.target.record import meter_here, verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Gives 0, 1 if numbers differ, 2 if there is nothing to compare."""
    parser = argparse.ArgumentParser(prog="python -m rekindle.torch", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser(
        "verify", help="run a planned step on the device that is here: predicted against measured"
    )
    command.add_argument("plan", help="what trace(…).plan(…).save wrote")
    command.add_argument(
        "script",
        help="a Python file with make_model(), make_batch() and, for an optimizer's state, "
        "make_optimizer(model)",
    )
    command.add_argument("--device", choices=("cpu", "cuda"), help="a GPU if there is one")
    command.add_argument("--record", default="record.json", help="where the record is written")
    given = parser.parse_args(arguments)
    try:
        record = verify(given.plan, given.script, meter_here(given.device))
        print("\n".join(record.lines()))
        print(f"record: {record.write(given.record)}")
    except RekindleError as error:
        print(f"rekindle: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 1 if record.bits else 0


if __name__ == "__main__":
    sys.exit(main())
