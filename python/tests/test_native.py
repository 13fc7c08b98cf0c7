"""The native module: the planner, rewriter and checker as Python sees them."""

import json
import pickle
import threading
import unittest
from unittest import mock

import rekindle
from rekindle import _native

LAYERS = 12


def chain(layers: int = LAYERS, bytes_each: int = 1000) -> rekindle.Graph:
    """A network whose backward node i reads what its forward node i made."""
    storages = [{"bytes": 10, "role": "input"}]
    nodes = [{"name": "x", "phase": "input", "time_us": 0, "reads": [], "writes": [0]}]
    for i in range(layers):
        storages.append({"bytes": bytes_each, "role": "activation"})
        nodes.append(
            {"name": f"f{i}", "phase": "forward", "time_us": 2, "reads": [i], "writes": [i + 1]}
        )
    for i in reversed(range(layers)):
        reads = [i + 1] if i == layers - 1 else [i + 1, len(storages) - 1]
        storages.append({"bytes": 10, "role": "gradient"})
        nodes.append(
            {
                "name": f"b{i}",
                "phase": "backward",
                "time_us": 2,
                "reads": reads,
                "writes": [len(storages) - 1],
            }
        )
    graph = {
        "format": "remat.graph/1",
        "name": "chain",
        "storages": storages,
        "nodes": nodes,
        "outputs": [len(storages) - 1],
    }
    return rekindle.Graph.from_json(json.dumps(graph))


class Planning(unittest.TestCase):
    def test_a_plan_fits_and_is_valid_for_its_graph_only(self) -> None:
        graph = chain()
        budget = rekindle.parse_budget("60%", graph)
        self.assertEqual(budget, graph.peak * 60 // 100)
        plan = _native.plan(graph, budget)
        self.assertLessEqual(plan.peak, budget)
        self.assertGreater(plan.time, graph.time)
        self.assertLessEqual(plan.bound, plan.time)
        self.assertEqual(rekindle.verify(graph, plan), [])
        self.assertNotEqual(rekindle.verify(chain(LAYERS + 1), plan), [])

    def test_steps_timeline_and_decisions_describe_the_same_plan(self) -> None:
        graph = chain()
        plan = _native.plan(graph, graph.peak // 2)
        runs = [node for kind, node in plan.steps() if kind == "run"]
        self.assertEqual(max(plan.timeline(graph)), plan.peak)
        self.assertEqual(len(plan.timeline(graph)), len(runs))
        self.assertEqual(len(graph.timeline()), len(graph) - 1)
        again = sum(decision.recomputed for decision in plan.decisions(graph))
        self.assertEqual(again, len(runs) - len(set(runs)))
        self.assertGreater(again, 0)
        self.assertEqual(len(rekindle.rewrite(graph, plan)), len(runs) + 1)

    def test_text_gives_the_same_plan_back(self) -> None:
        graph = chain()
        plan = _native.plan(graph, graph.peak // 2)
        read = rekindle.Plan.from_json(plan.to_json())
        self.assertEqual(read.steps(), plan.steps())
        self.assertEqual((read.peak, read.time, read.budget), (plan.peak, plan.time, plan.budget))
        self.assertIsNone(read.bound)
        self.assertEqual(rekindle.Graph.from_json(graph.to_json()).to_json(), graph.to_json())

    def test_an_infeasible_budget_names_the_smallest(self) -> None:
        graph = chain()
        with self.assertRaises(rekindle.InfeasibleBudget) as caught:
            _native.plan(graph, 100)
        error = caught.exception
        self.assertEqual((error.budget, error.floor), (100, graph.floor))
        self.assertEqual(error.smallest, rekindle.smallest(graph).peak)
        self.assertIn(str(error.smallest), str(error))
        self.assertEqual(_native.plan(graph, error.smallest).peak, error.smallest)
        copy = pickle.loads(pickle.dumps(error))
        self.assertEqual(
            (str(copy), copy.smallest, copy.tightest), (str(error), error.smallest, error.tightest)
        )

    def test_nonsense_is_refused_in_words(self) -> None:
        graph = chain()
        for call, word in [
            (lambda: rekindle.Graph.from_json("{}"), "format"),
            (lambda: rekindle.Plan.from_json("nothing"), "expected"),
            (lambda: rekindle.parse_budget("12XB", graph), "unit"),
            (lambda: _native.plan(graph, 100, strategy="luck"), "luck"),
            (lambda: _native.plan(graph, 100, effort=11), "between 0 and 10"),
        ]:
            with self.assertRaisesRegex(rekindle.InvalidInput, word):
                call()


class Watching(unittest.TestCase):
    """The graph is long enough for the planner to report several times."""

    def setUp(self) -> None:
        self.graph = chain(300)
        self.budget = self.graph.peak // 5

    def test_progress_is_told_and_other_threads_run(self) -> None:
        seen, ran = [], threading.Event()
        thread = threading.Thread(target=ran.set)

        def progress(*state: object) -> None:
            seen.append(state)
            if not thread.ident:
                thread.start()

        _native.plan(self.graph, self.budget, progress=progress)
        thread.join()
        self.assertTrue(ran.is_set())
        self.assertGreater(len(seen), 0)
        self.assertTrue(all(done <= total for done, total, _, _ in seen), seen)

    def test_an_exception_in_progress_ends_the_planning(self) -> None:
        told = mock.Mock(side_effect=KeyboardInterrupt)
        with self.assertRaises(KeyboardInterrupt):
            _native.plan(self.graph, self.budget, progress=told)
        told.assert_called_once()

    def test_no_time_gives_the_first_plan_or_says_so(self) -> None:
        try:
            plan = _native.plan(self.graph, self.budget, time_limit=0.0)
        except rekindle.PlanningStopped as stopped:
            self.assertIn("allow more time", str(stopped))
        else:
            self.assertEqual(plan.status, "stopped")


if __name__ == "__main__":
    unittest.main()
