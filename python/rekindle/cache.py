"""Plans on disk: a step that has been planned before is not planned again.

A plan is found by a hash of everything that it depends on: the graph with its sizes, the budget,
the strategy and its effort, where the times are from, the device, and the versions of PyTorch and
Rekindle. A file holds the timed graph and the plan; whoever reads it has it compared with what was
asked for, and checked like a new one.

The folder is `$REKINDLE_CACHE` (`~` is the user's home), or `rekindle` in the user's cache folder.
`REKINDLE_CACHE=off`, in any case, keeps plans in memory only.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rekindle.errors import InvalidInput

FORMAT = "rekindle.cache/1"


def folder() -> Path | None:
    """Where plans are kept; None if they are not."""
    given = os.environ.get("REKINDLE_CACHE", "")
    if given.lower() == "off":
        return None
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rekindle"


def key_of(digest: str, about: Mapping[str, object]) -> str:
    """The name under which the plan of a graph is kept."""
    text = json.dumps([digest, sorted(about.items())], default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def load(key: str) -> tuple[str, str] | None:
    """The timed graph and the plan, or None if there is no file. A file that is no such pair is an
    `InvalidInput` error.
    """
    where = folder()
    if where is None:
        return None
    try:
        text = (where / f"{key}.json").read_bytes()
    except OSError:
        return None
    try:
        entry = json.loads(text)
        if entry["format"] == FORMAT:
            return str(entry["graph"]), str(entry["plan"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(f"it is no {FORMAT} ({type(error).__name__}: {error})") from error
    raise InvalidInput(f"its format is {entry['format']!r}, not {FORMAT!r}")


def store(key: str, graph: str, plan: str) -> None:
    """Keeps a plan: whole or not at all. A folder that cannot be written to is no reason to stop
    training.
    """
    where = folder()
    if where is None:
        return
    text = json.dumps({"format": FORMAT, "graph": graph, "plan": plan})
    try:
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=where, suffix=".partial", delete=False) as file:
            file.write(text)
        os.replace(file.name, where / f"{key}.json")
    except OSError:
        return
