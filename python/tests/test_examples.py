"""The examples run as a user runs them, and learn."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


class Examples(unittest.TestCase):
    def losses(self, name: str, *options: str) -> list[float]:
        run = subprocess.run(
            [sys.executable, EXAMPLES / name, *options], capture_output=True, text=True
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, r"peak .* MiB → .* MiB of .* MiB allowed")
        return [
            float(loss) for loss in re.findall(r"^step \d+: loss (.+)$", run.stdout, re.MULTILINE)
        ]

    def assert_falls(self, losses: list[float]) -> None:
        """Single batches vary, so thirds of the run are compared."""
        third = len(losses) // 3
        self.assertLess(sum(losses[-third:]), sum(losses[:third]))

    def test_vision(self) -> None:
        losses = self.losses("vision.py", "--batch-size", "16", "--side", "32", "--steps", "9")
        self.assert_falls(losses)

    def test_language(self) -> None:
        losses = self.losses("language.py", "--batch-size", "8", "--length", "32", "--steps", "24")
        self.assert_falls(losses)


if __name__ == "__main__":
    unittest.main()
