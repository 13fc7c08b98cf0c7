"""Two processes train one planned model: gradients as without a plan, and the same plan on both."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = Path(__file__).with_name("ranks_training.py")
PATIENCE_SECONDS = 300


class Ranks(unittest.TestCase):
    settings: dict[str, str] = {}

    def check(self, kind: str, *expected: str) -> None:
        """Both ranks say what is expected, or each its own."""
        with tempfile.TemporaryDirectory() as folder:
            meeting = str(Path(folder) / "meeting")
            ranks = [
                subprocess.Popen(
                    [sys.executable, PROGRAM, kind, str(rank), meeting],
                    stdout=subprocess.PIPE,
                    env=os.environ | {"REKINDLE_PATIENCE": str(PATIENCE_SECONDS)} | self.settings,
                    text=True,
                )
                for rank in range(2)
            ]
            try:
                said = [rank.communicate(timeout=PATIENCE_SECONDS)[0].strip() for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
        self.assertEqual(said, list(2 * expected)[:2])

    def test_ddp_around_a_planned_module(self) -> None:
        self.check("ddp inside", "same")

    def test_a_planned_ddp(self) -> None:
        self.check("ddp outside", "same")

    def test_a_better_plan_comes_to_all_at_the_same_call(self) -> None:
        self.check("while training", "same")

    def test_fsdp2(self) -> None:
        self.check("fsdp", "same")

    def test_batches_of_different_shapes(self) -> None:
        for kind in ("ddp inside", "fsdp"):
            with self.subTest(kind):
                self.check(f"padded {kind}", "each its own")

    def test_ranks_with_different_models(self) -> None:
        self.check("different", "each its own")

    def test_ranks_with_different_parts_of_a_graph(self) -> None:
        self.check("other parts", "RanksDiffer")

    def test_tensor_parallel(self) -> None:
        self.check("tensor parallel", "same")

    def test_a_rank_that_does_not_come(self) -> None:
        self.settings = {"REKINDLE_PATIENCE": "1"}
        self.check("missing", "RankMissing", "ends")


if __name__ == "__main__":
    unittest.main()
