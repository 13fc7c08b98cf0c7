// Under the memory chart of a plan with transfers: what computes, what goes to the store, what
// comes back, and where computation waits; on the scale of the chart.

const LANE_HEIGHT = 16;
const LANE_GAP = 6;
const OUT_COLOUR = colour(6);
const IN_COLOUR = colour(5);
const COMPUTE_COLOUR = "var(--faint)";

// Spans [began, ended] that are nearer to each other than a pixel are one.
function merged(spans, least) {
  const all = [];
  for (const [began, ended] of spans) {
    const last = all[all.length - 1];
    if (last && began - last[1] < least) last[1] = Math.max(last[1], ended);
    else all.push([began, ended]);
  }
  return all;
}

class Lanes {
  constructor(view, timeline) {
    this.view = view;
    this.timeline = timeline;
    this.transfers = timeline.schedule.transfers;
    this.host = el("div", { class: "plot lanes", "data-panel": "lanes" });
    this.redraw = responsive(this.host, (width) => this.draw(width));
    this.host.addEventListener("pointermove", (event) => this.point(event));
    this.host.addEventListener("pointerleave", () => this.tip?.hide());
  }

  // When each node runs: a run may be followed by a wait before the next one begins.
  runs() {
    const { step, schedule, start } = this.timeline;
    return schedule.runs.map((node, run) => [start[run], Math.min(
      start[run] + step.nodes[node].seconds, start[run + 1])]);
  }

  rows() {
    const { transfers } = this;
    const spans = (copies) => copies.map((copy) => [copy.began, copy.ended]);
    return [
      { name: "compute", spans: this.runs(), fill: COMPUTE_COLOUR, waits: spans(transfers.waits) },
      { name: "out", spans: spans(transfers.out), fill: OUT_COLOUR, copies: transfers.out },
      { name: "in", spans: spans(transfers.in), fill: IN_COLOUR, copies: transfers.in },
    ];
  }

  // The place of a time on the axis of the chart, which may count nodes.
  place(time) {
    if (this.view.mode === "time") return time;
    const { start } = this.timeline;
    const run = this.view.planned().runAtTime(time);
    const whole = start[run + 1] - start[run];
    return run + (whole > 0 ? Math.min(Math.max((time - start[run]) / whole, 0), 1) : 0);
  }

  draw(width) {
    const left = width < PHONE ? 44 : 58;
    const right = width - MARGIN.right;
    const [from, to] = this.view.window;
    const rows = this.rows();
    const height = rows.length * (LANE_HEIGHT + LANE_GAP) + LANE_GAP;
    this.x = (place) => left + ((place - from) / (to - from || 1)) * (right - left);
    this.placeAt = (px) => from + ((px - left) / (right - left)) * (to - from);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
      "aria-label": "What computes, what is copied, and what waits" });
    rows.forEach((row, i) => {
      const top = LANE_GAP + i * (LANE_HEIGHT + LANE_GAP);
      row.top = top;
      root.append(
        svg("rect", { class: "lane-ground", x: left, y: top, width: right - left,
          height: LANE_HEIGHT, rx: 2 }),
        svg("text", { x: left - 6, y: top + LANE_HEIGHT - 4, "text-anchor": "end",
          class: "lane-name" }, row.name),
        svg("path", { class: "lane", "data-lane": row.name, fill: row.fill,
          d: this.boxes(row.spans, top, LANE_HEIGHT, left, right) }));
      if (row.waits) root.append(svg("path", { class: "wait", "data-lane": "wait",
        d: this.boxes(row.waits, top, LANE_HEIGHT, left, right) }));
    });
    this.drawn = rows;
    this.cursor = svg("g", {});
    root.append(this.cursor);
    this.host.replaceChildren(root);
    this.tip = tipOf(this.host);
    this.drawCursor();
  }

  // The spans as boxes, cut at the edges; at least half a pixel each, so that none is lost.
  boxes(spans, top, height, left, right) {
    const inside = spans.map(([began, ended]) => [this.x(this.place(began)),
      this.x(this.place(ended))]).filter(([began, ended]) => ended >= left && began <= right);
    const shown = merged(inside, 0.5);
    return shown.map(([began, ended]) => {
      const at = Math.max(began, left);
      const wide = Math.max(Math.min(ended, right) - at, 0.5);
      return `M${at.toFixed(2)} ${top}h${wide.toFixed(2)}v${height}h${(-wide).toFixed(2)}z`;
    }).join("");
  }

  drawCursor() {
    if (!this.cursor) return;
    this.cursor.replaceChildren();
    const { panel, run } = this.view.cursor;
    const at = this.view.panels[panel].middle(run);
    const [from, to] = this.view.window;
    if (panel === 0 || at < from || at > to) return;
    this.cursor.append(svg("line", { class: "cursor", x1: this.x(at), x2: this.x(at), y1: 0,
      y2: this.drawn.length * (LANE_HEIGHT + LANE_GAP) + LANE_GAP }));
  }

  // What is copied, or waited for, under the pointer.
  point(event) {
    const [px, py] = pointerAt(this.host, event);
    const row = this.drawn.find((r) => py >= r.top - 2 && py <= r.top + LANE_HEIGHT + 2);
    // What is narrower than the pointer is found within two pixels of it.
    const [low, high] = [px - 2, px + 2].map((p) => this.placeAt(p));
    const near = (list) => list.find((one) => this.place(one.ended) >= low
      && this.place(one.began) <= high);
    const copy = row?.copies && near(row.copies);
    const wait = row?.waits && near(this.transfers.waits);
    if (copy) {
      const tensor = this.timeline.step.tensors[copy.tensor];
      this.tip.show(px, row.top, el("b", {}, tensor.name),
        `${bytes(tensor.bytes)} ${row.name === "out" ? "to the store" : "back to memory"}, ` +
        `${seconds(copy.ended - copy.began)}`);
    } else if (wait) {
      this.tip.show(px, row.top, el("b", {}, `waits for ${seconds(wait.ended - wait.began)}`),
        wait.about);
    } else this.tip.hide();
  }
}

// What is on its way while a run takes place, and how long computation stood still before it.
function movingAt(timeline, run) {
  const { transfers } = timeline.schedule;
  if (!transfers) return [];
  const [from, to] = [timeline.start[run], timeline.start[run + 1]];
  const during = (list) => list.filter((one) => one.began < to && one.ended > from);
  const names = (copies) => {
    const shown = copies.slice(0, 3).map((c) => timeline.step.tensors[c.tensor].name).join(", ");
    return copies.length > 3 ? `${shown} and ${count(copies.length - 3)} more` : shown;
  };
  const facts = [["going out", during(transfers.out)], ["coming in", during(transfers.in)]]
    .filter(([, copies]) => copies.length).map(([what, copies]) => [what, names(copies)]);
  const wait = transfers.waits.find((w) => Math.abs(w.ended - from) <= 1e-12 + 1e-9 * from
    && w.ended > w.began);
  return wait ? facts.concat([["waited before it", seconds(wait.ended - wait.began)]]) : facts;
}

// What is moved, by what it is for.
function movesCard(timeline) {
  const { step, schedule } = timeline;
  const { transfers } = schedule;
  const sums = step.layers.map((name, layer) => ({ name, layer, tensors: new Set(), out: 0,
    in: 0 }));
  for (const way of ["out", "in"]) {
    for (const { tensor } of transfers[way]) {
      const row = sums[step.tensors[tensor].layer];
      row.tensors.add(tensor);
      row[way] += step.tensors[tensor].bytes;
    }
  }
  const rows = sums.filter((row) => row.tensors.size).reverse();
  const all = { name: "in all", layer: -1, tensors: { size: sum(rows.map((r) => r.tensors.size)) },
    out: transfers.moved_out, in: transfers.moved_in };
  const strong = (row, text) => (row.layer < 0 ? el("b", {}, text) : text);
  const share = transfers.waited_seconds / schedule.seconds;
  return el("div", { class: "card moves" },
    el("h3", {}, "What is moved"),
    table([
      { name: "", cell: (row) => (row.layer < 0 ? el("b", {}, row.name)
        : [el("i", { class: "swatch", style: `background:${colour(row.layer)}` }),
          ` ${row.name}`]) },
      { name: "tensors", number: true, cell: (row) => strong(row, count(row.tensors.size)) },
      { name: "out", number: true, cell: (row) => strong(row, bytes(row.out)) },
      { name: "in", number: true, cell: (row) => strong(row, bytes(row.in)) },
    ], rows.concat(all)),
    el("p", { class: "hint" }, `The store (${transfers.store}) holds ` +
      `${bytes(transfers.store_peak)} at most, ` +
      `${transfers.stored_at_start > 0 ? bytes(transfers.stored_at_start) : "nothing"} of it ` +
      `between steps. ${seconds(transfers.hidden_seconds)} of copying hide behind computation; ` +
      `it waits for ${seconds(transfers.waited_seconds)}, ${percent(share)} of the step.`));
}
