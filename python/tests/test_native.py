"""The native module: the planner, rewriter and checker as Python sees them."""

import json
import pickle
import threading
import unittest
from unittest import mock

import rekindle
from rekindle import Node, _native

LAYERS = 12


def chain(layers: int = LAYERS, bytes_each: int = 1000) -> rekindle.Graph:
    """A network whose backward node i reads what its forward node i made."""
    storages = [(10, "input")]
    nodes = [Node("x", "data", "input", reads=[], writes=[0])]
    for i in range(layers):
        storages.append((bytes_each, "activation"))
        nodes.append(Node(f"f{i}", "layer", "forward", time=2, reads=[i], writes=[i + 1]))
    for i in reversed(range(layers)):
        reads = [i + 1] if i == layers - 1 else [i + 1, len(storages) - 1]
        storages.append((10, "gradient"))
        written = [len(storages) - 1]
        nodes.append(Node(f"b{i}", "layer", "backward", time=2, reads=reads, writes=written))
    outputs = [len(storages) - 1]
    return rekindle.Graph("chain", storages=storages, nodes=nodes, outputs=outputs)


class Graphs(unittest.TestCase):
    def test_a_graph_gives_back_what_it_was_built_from(self) -> None:
        node = Node(
            "n", "op", "backward", reads=[0], writes=[1], updates=[0], effect="once", workspace=7
        )
        inputs = Node("x", "data", "input", reads=[], writes=[0])
        storages = [(5, "parameter"), (3, "other")]
        graph = rekindle.Graph("g", storages=storages, nodes=[inputs, node], outputs=[1])
        self.assertEqual((graph.name, graph.storages, graph.outputs), ("g", storages, [1]))
        found = graph.nodes[1]
        self.assertEqual((found.name, found.op, found.phase), ("n", "op", "backward"))
        self.assertEqual((found.reads, found.writes, found.updates), ([0], [1], [0]))
        self.assertEqual((found.effect, found.workspace, found.flops), ("once", 7, None))
        self.assertEqual(rekindle.Graph.from_json(graph.to_json()), graph)

    def test_times_and_scratch_are_changed_in_a_copy(self) -> None:
        graph = chain()
        slower = graph.with_times([float(at) for at in range(len(graph))])
        self.assertEqual(slower.time, sum(range(len(graph))))
        self.assertEqual(slower.nodes[3].time, 3.0)
        self.assertNotEqual(slower, graph)
        self.assertEqual(slower.digest, graph.digest)
        roomy = graph.with_workspace(1, 10**6)
        self.assertEqual(roomy.nodes[1].workspace, 10**6)
        self.assertGreater(roomy.peak, 10**6)
        self.assertNotEqual(roomy.digest, graph.digest)
        self.assertNotEqual(chain(LAYERS + 1).digest, graph.digest)

    def test_what_is_no_graph_is_refused(self) -> None:
        for call, word in [
            (lambda: Node("n", "op", "sideways", reads=[], writes=[]), "sideways"),
            (lambda: Node("n", "op", "input", reads=[], writes=[], effect="twice"), "twice"),
            (lambda: rekindle.Graph("g", storages=[(1, "x")], nodes=[], outputs=[]), "a role"),
            (lambda: rekindle.Graph("g", storages=[(1, "other")], nodes=[], outputs=[]), "s0"),
            (lambda: chain().with_times([1.0]), "times"),
            (lambda: chain().with_workspace(10**6, 1), "no node"),
        ]:
            with self.subTest(word), self.assertRaisesRegex(rekindle.InvalidInput, word):
                call()


class Budgets(unittest.TestCase):
    def test_text_is_read_without_a_graph(self) -> None:
        self.assertEqual(rekindle.parse_budget("3GiB"), 3 << 30)
        self.assertEqual(rekindle.parse_budget("1.5 KiB", plain_peak=7), 1536)
        self.assertEqual(rekindle.parse_budget("60%", 1001), 600)
        with self.assertRaisesRegex(rekindle.InvalidInput, "60%.*plain_peak"):
            rekindle.parse_budget("60%")

    def test_every_kind_of_budget_gives_a_plan(self) -> None:
        graph = chain()
        half = graph.peak // 2
        for budget in (half, f"{half}B", "50%", 0.5):
            self.assertEqual(rekindle.plan(graph, budget, effort=1).budget, half)

    def test_every_strategy_is_named_and_planned_with(self) -> None:
        self.assertEqual(rekindle.strategies()[0][0], "search")
        for strategy, about in rekindle.strategies():
            self.assertNotEqual(about, "")
            plan = rekindle.plan(chain(), 1.0, strategy=strategy)
            self.assertEqual(rekindle.verify(chain(), plan), [])


class Planning(unittest.TestCase):
    def test_a_plan_fits_and_is_valid_for_its_graph_only(self) -> None:
        graph = chain()
        budget = rekindle.parse_budget("60%", graph.peak)
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
        by_role = plan.bytes_by_role(graph)
        self.assertEqual(sum(size for _, size in by_role), plan.peak)
        self.assertEqual(by_role[0][0], "activation")

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
            (lambda: rekindle.parse_budget("12XB"), "unit"),
            (lambda: _native.plan(graph, 100, strategy="luck"), "luck"),
            (lambda: _native.plan(graph, 100, effort=11), "between 0 and 10"),
        ]:
            with self.assertRaisesRegex(rekindle.InvalidInput, word):
                call()


STORE = "out=1GB/s,in=1GB/s,latency=1us"


class Stores(unittest.TestCase):
    def test_text_comes_back_as_it_is_typed(self) -> None:
        for text in (STORE, "out=3GB/s,in=3GB/s,half-duplex,limit=40GiB"):
            self.assertEqual(_native.parse_store(text), text)
        self.assertEqual(_native.parse_store("in=2000MB/s, out=1GB/s"), "out=1GB/s,in=2GB/s")
        for text, word in (("fast", "unknown part"), ("out=1GB/s", "in="), ("", "empty")):
            for call in (_native.parse_store, lambda text: rekindle.plan(chain(), 0.5, store=text)):
                with self.assertRaisesRegex(rekindle.InvalidInput, word):
                    call(text)
        with self.assertRaisesRegex(rekindle.InvalidInput, "25"):
            rekindle.plan(chain(), 0.5, store=25)  # type: ignore[arg-type]

    def test_a_plan_that_moves_says_what_and_how_long(self) -> None:
        graph = chain(2)
        # f0 makes s1, f1 makes s2; s1 is away while f1 runs, and b0 waits for it.
        steps = [{"run": 1}, {"offload": 1}, {"run": 2}, {"free": 1}, {"run": 3}, {"free": 2}]
        steps += [{"fetch": 1}, {"run": 4}]
        text = {
            "format": "remat.plan/2",
            "graph": "chain",
            "budget_bytes": 4000,
            "peak_bytes": 2010,
            "time_us": 11.0,
            "store": {"out_bytes_per_us": 1000, "in_bytes_per_us": 1000, "latency_us": 1},
            "steps": steps,
        }
        plan = rekindle.Plan.from_json(json.dumps(text))
        self.assertEqual(plan.store, STORE)
        moves = plan.transfers(graph)
        assert moves is not None
        self.assertEqual((moves.moved_out, moves.moved_in), (1000, 1000))
        # Out behind f1 alone; back while nothing runs, for latency and bytes.
        self.assertEqual((moves.hidden, moves.waited), (2.0, 2.0))
        self.assertEqual((moves.store_peak, moves.between_steps), (1000, 0))
        self.assertEqual([d.moved for d in plan.decisions(graph)], [1, 0])
        plain = _native.plan(graph, graph.peak)
        self.assertEqual((plain.store, plain.transfers(graph)), (None, None))

    def test_a_store_helps_and_is_checked(self) -> None:
        graph = chain()
        budget = graph.peak // 2
        fast = "out=1TB/s,in=1TB/s"
        alone = rekindle.plan(graph, budget, effort=1)
        moving = rekindle.plan(graph, budget, effort=1, store=fast)
        self.assertEqual(rekindle.verify(graph, moving), [])
        self.assertLess(moving.time, alone.time)
        self.assertEqual(moving.store, fast)
        self.assertLessEqual(
            rekindle.smallest(graph, store=fast).peak, rekindle.smallest(graph).peak
        )

    def test_a_frontier_goes_down_from_the_plain_peak(self) -> None:
        graph = chain()
        for store in (None, STORE):
            plans = rekindle.frontier(graph, 4, effort=0, store=store)
            self.assertEqual(plans[0].budget, graph.peak)
            self.assertEqual(plans[-1].peak, rekindle.smallest(graph, effort=0, store=store).peak)
            times = [plan.time for plan in plans]
            self.assertEqual(times, sorted(times))
        with self.assertRaisesRegex(rekindle.InvalidInput, "points"):
            rekindle.frontier(graph, 1)


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
