"""The tolerance tells rounding from a mistake."""

import unittest

import torch

from tolerance import excess


def rounded(exact: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """`exact` with an error of a few units in the last place of float32, other for each seed."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor
        * (1 + 3e-7 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
        for name, tensor in exact.items()
    }


class Tolerance(unittest.TestCase):
    def setUp(self):
        generator = torch.Generator().manual_seed(0)
        shapes = {"weight": (64, 32), "bias": (64,), "scale": (3,), "loss": (1,)}
        self.exact = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64)
            for name, shape in shapes.items()
        }
        self.peer = rounded(self.exact, 1)

    def test_another_rounding_passes(self):
        self.assertEqual(excess(self.exact, [self.peer], rounded(self.exact, 2)), [])

    def test_a_wrong_element_is_named(self):
        ours = rounded(self.exact, 2)
        ours["bias"][5] *= 1.001
        self.assertEqual(
            [line.split(":")[0] for line in excess(self.exact, [self.peer], ours)], ["bias"]
        )

    def test_a_systematic_error_of_1e_5_is_named(self):
        ours = rounded(self.exact, 2)
        ours["weight"] *= 1 + 1e-5
        self.assertEqual(
            [line.split(":")[0] for line in excess(self.exact, [self.peer], ours)], ["weight"]
        )

    def test_a_missing_tensor_and_a_wrong_shape_are_named(self):
        ours = rounded(self.exact, 2)
        del ours["loss"]
        ours["bias"] = ours["bias"][:-1]
        self.assertEqual(
            [line.split(":")[0] for line in excess(self.exact, [self.peer], ours)], ["bias", "loss"]
        )

    def test_a_switch_that_flips_elsewhere_is_no_mistake_of_several_steps(self):
        flipped = rounded(self.exact, 3)
        flipped["bias"] *= 1 + 1e-3
        ours = rounded(self.exact, 2)
        ours["scale"] *= 1 + 1e-3
        peers = [self.peer, flipped]
        self.assertEqual(excess(self.exact, peers, ours), [])
        ours["scale"] *= 1.1
        self.assertEqual(
            [line.split(":")[0] for line in excess(self.exact, peers, ours)], ["scale"]
        )

    def test_not_a_number_is_named(self):
        ours = rounded(self.exact, 2)
        ours["scale"][0] = float("nan")
        self.assertEqual(
            [line.split(":")[0] for line in excess(self.exact, [self.peer], ours)], ["scale"]
        )
