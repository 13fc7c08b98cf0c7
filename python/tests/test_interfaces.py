"""Private interfaces of PyTorch: all are there, in one file, and what is lacking is named."""

import re
import types
import unittest
from pathlib import Path
from unittest import mock

import rekindle
from rekindle.torch import interfaces

PACKAGE = Path(interfaces.__file__).parent.parent
PRIVATE = re.compile(
    r"(?:from|import) torch\S*\._|import _pytree|torch\.(?:\w+\.)*_[a-z]\w*|"
    r"\._(?:cdata|schema|opname|boxed_call|metadata|backward_hooks|backward_pre_hooks)\b"
)
"""What a use of a private interface looks like."""


class Interfaces(unittest.TestCase):
    def test_this_pytorch_lacks_nothing(self) -> None:
        needed = interfaces.NEEDED + interfaces.NEEDED_FOR_INDUCTOR
        self.assertEqual(interfaces.missing(needed), [])

    def test_everything_that_is_lacking_is_named(self) -> None:
        stand_in = types.ModuleType("stand_in")
        stand_in.kept = 1
        needed = [
            ("kept", "stand_in"),
            ("moved", "stand_in"),
            ("anything", "stand_in.gone"),
            ("anything", "no_such_module.inside"),
            ("_renamed", "torch.nn.Module"),
        ]
        lacking = [
            "stand_in.moved",
            "stand_in.gone.anything",
            "no_such_module.inside.anything",
            "torch.nn.Module._renamed",
        ]
        with mock.patch.dict("sys.modules", stand_in=stand_in):
            self.assertEqual(interfaces.missing(needed), lacking)
            with self.assertRaisesRegex(rekindle.UnsupportedTorch, ", ".join(lacking)):
                interfaces.require(needed)
            interfaces.require(needed[:1])

    def test_they_are_in_one_file(self) -> None:
        found = [
            f"{file.relative_to(PACKAGE)}:{number}: {line.strip()}"
            for file in sorted(PACKAGE.rglob("*.py"))
            if file.name != "interfaces.py"
            for number, line in enumerate(file.read_text().splitlines(), 1)
            if PRIVATE.search(line) and "`" not in line and '"' not in line
        ]
        self.assertEqual(found, [])
        own = Path(interfaces.__file__).read_text()
        self.assertGreater(len(PRIVATE.findall(own)), len(interfaces.NEEDED) // 2)


if __name__ == "__main__":
    unittest.main()
