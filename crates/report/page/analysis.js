// Statistics of the profile, and measured comparisons per batch size.

const PHASES = ["forward", "backward", "optimizer"];
const OPS_SHOWN = 8;

function renderProfile(host, data, step, plan, stepIndex) {
  host.replaceChildren();
  if (step.nodes.length) {
    host.append(el("div", { class: "columns" }, phasesCard(step), opsCard(step)));
    host.append(el("div", { class: "columns" }, runTimesCard(step), scatterCard(step, plan)));
  }
  host.append(...missingParts(data, "profile", stepIndex));
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

function phasesCard(step) {
  const running = step.nodes.filter((n) => n.phase !== "input");
  const whole = sum(running.map((n) => n.seconds));
  const rows = [...PHASES, "other"].map((phase) => ({ phase,
    nodes: running.filter((n) => n.phase === phase) })).filter((row) => row.nodes.length);
  const rank = (wanted) => step.nodes.findIndex(wanted);
  const backward = rank((n) => n.phase === "backward");
  const update = rank((n) => n.phase === "optimizer");
  const sizes = step.activations.map((a) => a.bytes);
  const idle = step.activations.map((a) => a.inactive_seconds).filter((s) => s !== null)
    .sort((a, b) => a - b);
  const facts = [
    ["activations", `${count(sizes.length)}, ${bytes(sum(sizes))} in all`],
    ["the largest", sizes.length ? bytes(Math.max(...sizes)) : "–"],
    ["median inactive time", idle.length ? seconds(idle[idle.length >> 1]) : "–"],
    ["cannot be recomputed", count(step.activations.filter((a) => a.recompute_seconds === null)
      .length)],
    ["first backward node", backward < 0 ? "none" : `rank ${count(backward)}`],
    ["first update", update < 0 ? "none" : `rank ${count(update)}`],
  ];
  return el("div", { class: "card" },
    el("h3", {}, "The step"),
    table([
      { name: "pass", cell: (row) => row.phase ?? el("b", {}, "all") },
      { name: "nodes", number: true, cell: (row) => count(row.nodes.length) },
      { name: "time", number: true, cell: (row) => seconds(sum(row.nodes.map((n) => n.seconds))) },
      { name: "share", number: true, cell: (row) => percent(
        sum(row.nodes.map((n) => n.seconds)) / whole) },
    ], rows.concat({ phase: undefined, nodes: running })),
    el("dl", { class: "amounts",
      style: "margin-top:.75rem;grid-template-columns:minmax(0,1fr) auto" },
      facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
}

function opsCard(step) {
  const byOp = new Map();
  for (const node of step.nodes.filter((n) => n.phase !== "input")) {
    const entry = byOp.get(node.op) || { op: node.op, nodes: 0, time: 0 };
    byOp.set(node.op, { ...entry, nodes: entry.nodes + 1, time: entry.time + node.seconds });
  }
  const ops = [...byOp.values()].sort((a, b) => b.time - a.time);
  const rest = ops.slice(OPS_SHOWN);
  const rows = ops.slice(0, OPS_SHOWN).concat(rest.length ? { op: `${rest.length} others`,
    nodes: sum(rest.map((r) => r.nodes)), time: sum(rest.map((r) => r.time)) } : []);
  const most = Math.max(...rows.map((r) => r.time), 1e-12);
  const whole = sum(ops.map((r) => r.time));
  return el("div", { class: "card" },
    el("h3", {}, "Where the time goes"),
    table([
      { name: "operation", class: "name", cell: (r) => r.op },
      { name: "nodes", number: true, cell: (r) => count(r.nodes) },
      { name: "time", number: true, cell: (r) => seconds(r.time) },
      { name: "share", number: true, cell: (r) => percent(r.time / whole) },
      { name: "", cell: (r) => el("i", { class: "cell-bar",
        style: `width:${(4 * r.time) / most}rem` }) },
    ], rows));
}

// The run time of each node, by rank; the longest of each column of pixels.
function runTimesCard(step) {
  const host = el("div", { class: "plot" });
  const first = step.nodes.findIndex((n) => n.phase !== "input");
  const nodes = step.nodes.map((node, rank) => ({ ...node, rank })).slice(Math.max(first, 0));
  responsive(host, (width) => {
    const { root, x, y, inner } = frame(width, {
      height: 250, label: "Run time of each node", title: "run time of each node",
      x: { kind: "count", domain: [first, step.nodes.length], name: "rank of the node" },
      y: { kind: "seconds", domain: [0, roundUp("seconds", Math.max(...nodes.map((n) => n.seconds),
        1e-9))] },
      margin: { top: 44, left: 46 },
    });
    const longest = new Map();
    for (const node of nodes) {
      const px = Math.floor(x(node.rank));
      if (!longest.has(px) || longest.get(px).seconds < node.seconds) longest.set(px, node);
    }
    const marks = [];
    for (const [px, node] of longest) {
      const index = Math.max(PHASES.indexOf(node.phase), 0);
      root.append(svg("line", { class: "column", x1: px + 0.5, x2: px + 0.5, y1: inner.bottom,
        y2: y(node.seconds), stroke: colour(index), "stroke-width": 1.2 }));
      marks.push({ x: px, y: y(node.seconds), about: () => [el("b", {}, node.name),
        `${node.op}, ${seconds(node.seconds)}, ${node.phase}`] });
    }
    host.replaceChildren(root);
    nearestTip(host, root, marks);
  });
  return el("div", { class: "card" }, el("div", { class: "tools" },
    legend(PHASES.map((p, i) => [p, colour(i)]))), host);
}

// Size against inactive time of each activation, coloured by what the plan does.
function scatterCard(step, plan) {
  const host = el("div", { class: "plot" });
  const decided = plan && plan.decisions.length === step.activations.length;
  const kind = (i) => (decided ? DECISIONS.indexOf(decisionOf(plan.decisions[i])) : 0);
  const points = step.activations.map((a, i) => ({ ...a, kind: kind(i) }))
    .filter((a) => a.inactive_seconds !== null);
  const words = DECISIONS.filter((word) => word !== "moved" || plan?.transfers);
  const entries = decided ? words.map((word, i) => [word, colour(i)])
    : [["activations", colour(0)]];
  responsive(host, (width) => {
    const { root, x, y } = frame(width, {
      height: 250, label: "Size against inactive time of each activation",
        title: "size of each activation",
      x: { kind: "seconds", domain: [0, roundUp("seconds", Math.max(
        ...points.map((p) => p.inactive_seconds), 1e-9))], name: "inactive time" },
      y: { kind: "bytes", domain: [0, roundUp("bytes", Math.max(...points.map((p) => p.bytes),
        1))] },
      margin: { top: 44, left: 46 },
    });
    const marks = points.map((p) => {
      root.append(svg("circle", { class: "point", cx: x(p.inactive_seconds), cy: y(p.bytes), r: 3.2,
        fill: colour(p.kind), "fill-opacity": 0.7 }));
      return { x: x(p.inactive_seconds), y: y(p.bytes), about: () =>
        [el("b", {}, p.name), `${bytes(p.bytes)}, inactive for ${seconds(p.inactive_seconds)}`,
        el("br"), p.recompute_seconds === null ? "cannot be recomputed"
        : `${seconds(p.recompute_seconds)} to recompute`] };
    });
    host.replaceChildren(root);
    nearestTip(host, root, marks);
  });
  return el("div", { class: "card" }, el("div", { class: "tools" }, legend(entries)), host);
}

function renderBatches(host, data, step, stepIndex) {
  host.replaceChildren();
  const rows = data.comparisons.filter((row) => row.model === step.model)
    .sort((a, b) => a.batch - b.batch || a.budget - b.budget);
  if (rows.length) {
    host.append(el("div", { class: "columns" }, peakBars(rows), latencyLines(rows)),
      batchTable(rows));
  }
  host.append(...missingParts(data, "batches", stepIndex));
}

const overheadOf = (row) => (row.plain_seconds && row.planned_seconds
  ? row.planned_seconds / row.plain_seconds - 1 : null);
const SIDES = [["plain", colour(0)], ["planned", colour(1)]];

function peakBars(rows) {
  const host = el("div", { class: "plot" });
  responsive(host, (width) => {
    const { root, x, y, inner } = frame(width, {
      height: 280, label: "Peak memory against batch size", title: "peak memory",
      x: { domain: [0, rows.length], categories: rows.map((r) => count(r.batch)),
        name: "batch size" },
      y: { kind: "bytes", domain: [0, roundUp("bytes", Math.max(
        ...rows.map((r) => r.plain_peak)) * 1.08)] },
      margin: { top: 44, left: 46 },
    });
    const slot = x(1) - x(0);
    const thick = Math.min(64, slot * 0.36);
    rows.forEach((row, i) => {
      [row.plain_peak, row.planned_peak].forEach((peak, side) => {
        const left = x(i + 0.5) + (side - 1) * (thick + 2) + 1;
        if (peak === null) {
          root.append(svg("text", { x: left + thick / 2, y: inner.bottom - 8,
            "text-anchor": "middle" }, "no plan"));
          return;
        }
        root.append(svg("rect", { class: "bar", x: left, y: y(peak), width: thick,
          height: inner.bottom - y(peak), rx: 3, fill: SIDES[side][1] },
          svg("title", {}, `${SIDES[side][0]}, batch ${row.batch}: ${bytes(peak)}`)));
        const note = side ? percent(peak / row.plain_peak - 1, 0) : "";
        if (note) root.append(svg("text", { class: "strong halo", x: left + thick / 2,
          y: y(peak) - 6, "text-anchor": "middle" }, note));
      });
    });
    host.replaceChildren(root);
  });
  return el("div", { class: "card" }, el("div", { class: "tools" }, legend(SIDES)), host);
}

function latencyLines(rows) {
  const host = el("div", { class: "plot" });
  responsive(host, (width) => {
    const times = rows.flatMap((r) => [r.plain_seconds, r.planned_seconds])
      .filter((t) => t !== null);
    const { root, x, y, inner } = frame(width, {
      height: 280, label: "Time of a step against batch size", title: "time of a step",
      x: { domain: [0, rows.length], categories: rows.map((r) => count(r.batch)),
        name: "batch size" },
      y: { kind: "seconds", domain: [0, roundUp("seconds", Math.max(...times, 1e-9) * 1.1)] },
      margin: { top: 44, left: 46 },
    });
    const marks = [];
    ["plain_seconds", "planned_seconds"].forEach((key, side) => {
      const points = rows.map((row, i) => ({ row, at: [x(i + 0.5), y(row[key])] }))
        .filter(({ row }) => row[key] !== null);
      if (points.length > 1) root.append(svg("path", { class: "curve", stroke: SIDES[side][1],
        d: `M${points.map((p) => p.at.join(" ")).join("L")}` }));
      for (const { row, at } of points) {
        root.append(svg("circle", { class: "dot", cx: at[0], cy: at[1], r: 5,
          fill: SIDES[side][1] }));
        marks.push({ x: at[0], y: at[1], about: () => [el("b", {},
          `${SIDES[side][0]}, batch ${row.batch}`), seconds(row[key])] });
        if (side && overheadOf(row) !== null) root.append(label(change(overheadOf(row)),
          [at[0], at[1] - 12], [inner.left, inner.right], { class: "strong" }));
      }
    });
    host.replaceChildren(root);
    nearestTip(host, root, marks);
  });
  return el("div", { class: "card" }, el("div", { class: "tools" }, legend(SIDES)), host);
}

function batchTable(rows) {
  const remarked = rows.some((row) => row.remark);
  const columns = [
    { name: "batch", number: true, cell: (r) => count(r.batch) },
    { name: "budget", number: true, cell: (r) => bytes(r.budget) },
    { name: "plain peak", number: true, cell: (r) => bytes(r.plain_peak) },
    { name: "planned peak", number: true, cell: (r) => bytes(r.planned_peak) },
    { name: "less memory", number: true, cell: (r) => (r.planned_peak === null ? "–"
      : percent(1 - r.planned_peak / r.plain_peak)) },
    { name: "plain step", number: true, cell: (r) => seconds(r.plain_seconds) },
    { name: "planned step", number: true, cell: (r) => seconds(r.planned_seconds) },
    { name: "more time", number: true, cell: (r) => change(overheadOf(r)) },
    { name: "predicted", number: true, cell: (r) => change(r.predicted_overhead) },
    { name: "same bits", cell: (r) => (r.bit_equal ? el("span", { class: "good" }, "✓ yes")
      : "not compared") },
  ];
  if (remarked) columns.push({ name: "remark", class: "reason", cell: (r) => r.remark });
  return el("div", { class: "scroll low", tabindex: "0", role: "region",
    "aria-label": "Batch sizes", style: "margin-top:.75rem" }, table(columns, rows));
}
