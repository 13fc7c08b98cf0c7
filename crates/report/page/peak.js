// What the peak is made of, and what more memory would buy.

function renderPeak(host, data, step, timelines, plan, stepIndex) {
  host.replaceChildren();
  if (!timelines.length) {
    host.append(...missingParts(data, "memory", stepIndex));
    return;
  }
  const buys = plan && step.frontier.length ? buysCard(step, plan) : null;
  host.append(el("div", { class: "columns" }, partsCard(step, timelines), buys
    || el("div", {}, missingParts(data, plan ? "frontier" : "memory", stepIndex))));
  if (plan?.transfers) host.append(movesCard(timelines[timelines.length - 1]));
}

function partsCard(step, timelines) {
  const most = Math.max(...timelines.map((t) => t.total[t.peak]));
  const bar = (t) =>
    el("div", { class: "parts",
    style: "display:flex;height:1.5rem;border-radius:6px;overflow:hidden;" +
      `width:${(100 * t.total[t.peak]) / most}%` },
    step.layers.map((name, i) =>
      el("div", {
        style: `background:${colour(i)};width:${(100 * t.layers[i][t.peak]) / t.total[t.peak]}%`,
        title: `${name}: ${bytes(t.layers[i][t.peak])}` })));
  const named = (t) => (t === timelines[0] ? "plain" : "planned");
  const columns = [
    { name: "", cell: (i) => (i < 0 ? el("b", {}, "in all")
      : [el("i", { class: "swatch", style: `background:${colour(i)}` }), ` ${step.layers[i]}`]) },
    ...timelines.map((t) => ({ name: named(t), number: true, cell: (i) =>
      (i < 0 ? el("b", {}, bytes(t.total[t.peak])) : bytes(t.layers[i][t.peak])) })),
  ];
  if (timelines.length > 1) {
    const [plain, planned] = timelines;
    const at = (t, i) => (i < 0 ? t.total[t.peak] : t.layers[i][t.peak]);
    columns.push({ name: "saved", number: true, cell: (i) =>
      bytes(at(plain, i) - at(planned, i)) });
  }
  const where = (t) => `${named(t)}: at ${step.nodes[t.schedule.runs[t.peak]].name}`;
  return el("div", { class: "card" },
    timelines.map((t) => el("div", { style: "margin-bottom:.75rem" },
      el("div", { class: "hint", style: "margin:0 0 .2rem;overflow-wrap:anywhere" }, where(t)),
      bar(t))),
    table(columns, [...step.layers.keys()].reverse().concat(-1)));
}

const GIB = 1024 ** 3;

// Amounts that are worth asking about: some that a person would try, and a GiB.
function amounts(room) {
  const half = 2 ** Math.floor(Math.log2(Math.max(room / 2, 1)));
  const wanted = [half / 4, half / 2, half, GIB].filter((amount) => amount >= 1024);
  return [...new Set(wanted)].sort((a, b) => a - b);
}

function buysCard(step, plan) {
  const plain = step.schedules[0];
  // With a store, what it can do counts, too.
  const stored = plan.transfers && step.stored_frontier ? step.stored_frontier.points : [];
  const known = step.frontier.concat(stored, { peak: plan.peak, seconds: plan.seconds,
    recomputed: null });
  // The fastest plan that is known under a budget.
  const best = (budget) => known.filter((p) => p.peak <= budget)
    .sort((a, b) => a.seconds - b.seconds)[0];
  const from = Math.max(plan.budget, plan.peak);
  const rows = amounts(plain.peak - from).flatMap((amount) =>
    [[-amount, best(from - amount)], [amount, best(from + amount)]])
    .concat([[0, best(from)]]).filter(([amount, point]) => point || amount > -GIB)
      .sort(([a], [b]) => a - b);
  const told = (amount, point) => {
    if (!point) return "no plan is known";
    if (point.seconds <= plain.seconds * (1 + 1e-9)) return "the plain step fits";
    return change(point.seconds / plain.seconds - 1);
  };
  const here = best(from);
  const gib = best(from + GIB);
  const sentence = gib.seconds < here.seconds * (1 - 1e-9)
    ? `One more GiB would save ${seconds(here.seconds - gib.seconds)} of each step ` +
      `(${percent((here.seconds - gib.seconds) / here.seconds)} of it).`
    : "One more GiB would buy nothing.";
  return el("div", { class: "card" },
    el("h3", {}, "What one more GiB would buy"),
    el("p", { class: "about", style: "margin-bottom:.5rem" }, sentence),
    table([
      { name: "memory", cell: ([amount]) => (amount === 0 ? el("b", {},
        `${bytes(from)}, this budget`)
        : `${bytes(Math.abs(amount))} ${amount < 0 ? "less" : "more"}`) },
      { name: "time added", number: true, cell: ([amount, point]) =>
        (amount === 0 ? el("b", {}, told(amount, point)) : told(amount, point)) },
    ], rows),
    el("p", { class: "hint" }, "The fastest of the plans that were made for the frontier below."));
}
