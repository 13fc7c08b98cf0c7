// Time against peak: the frontier, the chosen plan, and what other methods reach.

function renderFrontier(host, data, step, plan, stepIndex) {
  host.replaceChildren(...missingParts(data, "frontier", stepIndex));
  const plain = step.schedules[0];
  const stored = step.stored_frontier;
  if (!plain || (!step.frontier.length && !step.beside.length && !stored)) return;
  const added = (time) => time / plain.seconds - 1;
  const chosen = plan ? [{ name: "this plan", peak: plan.peak, seconds: plan.seconds,
    about: `within a budget of ${bytes(plan.budget)}` }] : [];
  const host2 = el("div", { class: "plot" });
  const entries = [];
  if (step.frontier.length) entries.push(["plans of the search", colour(0)],
    [stored ? "no plan without a store can be here" : "no plan can be here",
      "color-mix(in srgb, var(--faint) 28%, transparent)"]);
  if (stored) entries.splice(1, 0, [`with a store (${stored.store})`, STORED_COLOUR]);
  entries.push(...step.beside.map((b, i) => [b.name, colour(
    BESIDE_COLOURS[i % BESIDE_COLOURS.length])]));
  host.prepend(el("div", { class: "card" },
    el("div", { class: "tools" }, legend(entries)), host2,
    step.beside.length ? el("div", { class: "hint" }, step.beside.map((b) =>
      el("div", {}, el("b", {}, b.name), ` ${b.about}`))) : null,
    kneeHint(step, added)));
  responsive(host2, (width) => drawFrontier(host2, width, step, plain, added, chosen));
}

// What the knees mean to who looks for a budget.
function kneeHint(step, added) {
  const told = (points, index, where) => {
    const p = points?.[index];
    return p ? [`${where} ${bytes(p.peak)} for ${change(added(p.seconds))} time`] : [];
  };
  const knees = [...told(step.frontier, step.knee, "at"),
    ...told(step.stored_frontier?.points, step.stored_frontier?.knee, "with the store at")];
  return knees.length ? el("div", { class: "hint" }, el("b", {}, "knee"), ` ${knees.join(", ")}: ` +
    "more memory saves little time, less costs much.") : null;
}

const STORED_COLOUR = colour(6);
// One colour for each other method; the first belongs to the frontier itself.
const BESIDE_COLOURS = [1, 2, 3, 5];

function drawFrontier(host, width, step, plain, added, chosen) {
  const points = step.frontier;
  const stored = step.stored_frontier?.points || [];
  const all = [...points, ...stored, ...step.beside, ...chosen];
  const peaks = all.map((p) => p.peak);
  const low = Math.min(...peaks);
  const high = Math.max(plain.peak, ...peaks);
  const most = Math.max(0.01, ...all.map((p) => added(p.seconds)));
  const { root, x, y, inner } = frame(width, {
    height: width < PHONE ? 280 : 360,
    label: "Added time against peak memory",
    title: "time added to the plain step",
    x: { kind: "bytes", domain: [Math.max(0, low - (high - low) * 0.06), high
      + (high - low) * 0.04], name: "peak memory" },
    y: { kind: "percent", domain: [0, roundUp("percent", most * 1.08)] },
    margin: { top: 44, left: width < PHONE ? 40 : 58 },
  });
  // What no plan can beat under a budget, none can under a smaller one.
  const bounds = points.map((_, i) => Math.max(0, ...points.slice(i)
    .map((p) => added(p.bound_seconds))));
  if (points.length) {
    const below = points.map((p, i) => `${x(p.budget)} ${y(bounds[i])}`);
    const ends = [points[0].budget, points[points.length - 1].budget].map(x);
    root.append(svg("path",
      { class: "never",
      d: `M${ends[0]} ${inner.bottom}L${below.join("L")}L${ends[1]} ${inner.bottom}Z` }));
    root.append(svg("path", { class: "curve", stroke: colour(0),
      d: `M${points.map((p) => `${x(p.peak)} ${y(added(p.seconds))}`).join("L")}` }));
  }
  if (stored.length) root.append(svg("path", { class: "curve stored", stroke: STORED_COLOUR,
    d: `M${stored.map((p) => `${x(p.peak)} ${y(added(p.seconds))}`).join("L")}` }));
  const marks = [];
  const mark = (shape, p, name, note) => {
    root.append(shape);
    marks.push({ x: x(p.peak), y: y(added(p.seconds)), about: () =>
      [el("b", {}, name), `${bytes(p.peak)}, ${percent(p.peak / plain.peak, 0)} of the plain peak`,
      el("br"), `${change(added(p.seconds))} time${note ? `; ${note}` : ""}`] });
  };
  for (const [i, p] of points.entries()) {
    const dot = svg("circle", { class: "dot point", cx: x(p.peak), cy: y(added(p.seconds)), r: 4,
      fill: colour(0) });
    mark(dot, p, "search", `any plan takes ${change(bounds[i])} at least`);
  }
  const knees = [points[step.knee], stored[step.stored_frontier?.knee]].filter(Boolean);
  for (const p of stored) {
    const dot = svg("circle", { class: "dot point stored", cx: x(p.peak), cy: y(added(p.seconds)),
      r: 4, fill: STORED_COLOUR });
    mark(dot, p, "with a store", `${bytes(p.moved)} moved; any plan takes ` +
      `${change(Math.max(0, added(p.bound_seconds)))} at least`);
  }
  const taken = marks.map((m) => [m.x - 5, m.y - 5, m.x + 5, m.y + 5]);
  step.beside.forEach((p, i) => {
    const [px, py] = [x(p.peak), y(added(p.seconds))];
    const fillColour = colour(BESIDE_COLOURS[i % BESIDE_COLOURS.length]);
    mark(svg("path",
      { class: "dot beside", d: `M${px} ${py - 7}L${px + 7} ${py}L${px} ${py + 7}L${px - 7} ${py}Z`,
      fill: fillColour }), p, p.name, "");
    placeLabel(root, p.name, [px, py], inner, taken, "strong");
  });
  for (const p of knees) {
    const [px, py] = [x(p.peak), y(added(p.seconds))];
    root.append(svg("circle", { class: "knee", cx: px, cy: py, r: 8 }));
    placeLabel(root, "knee", [px, py], inner, taken, "");
  }
  for (const p of chosen) {
    const [px, py] = [x(p.peak), y(added(p.seconds))];
    mark(svg("circle", { class: "mark chosen", cx: px, cy: py, r: 7 }), p, p.name, p.about);
    placeLabel(root, p.name, [px, py], inner, taken, "strong");
  }
  host.replaceChildren(root);
  nearestTip(host, root, marks);
}

// Writes a label beside a mark, at the first place where it lies on nothing.
function placeLabel(root, text, [px, py], inner, taken, className) {
  const width = text.length * 7.2;
  const places = [[12, 4], [-12 - width, 4], [-width / 2, -14], [-width / 2, 24], [12, -14],
    [12, 22], [-12 - width, -14], [-12 - width, 22]];
  const boxes = places.map(([dx, dy]) => [px + dx, py + dy - 12, px + dx + width, py + dy + 3]);
  const free = (box) => box[0] >= inner.left && box[2] <= inner.right && box[1] >= inner.top - 8
    && box[3] <= inner.bottom
    && taken.every((t) => box[2] < t[0] || t[2] < box[0] || box[3] < t[1] || t[3] < box[1]);
  const box = boxes.find(free) || boxes[0];
  taken.push(box, [px - 8, py - 8, px + 8, py + 8]);
  root.append(svg("text", { x: box[0], y: box[3] - 3, class: `halo ${className}` }, text));
}
