// One schedule of the memory chart: how it is drawn, and what pointer and keys do.

const PANEL_HEIGHT = 250;
const PHONE = 560;
// A drag shorter than this is a click.
const LEAST_DRAG = 6;
// The strip under the axis that shows where nodes run again.
const AGAIN_HEIGHT = 5;
const AGAIN_COLOUR = colour(7);

class MemoryPanel {
  constructor(view, timeline, index) {
    this.view = view;
    this.timeline = timeline;
    this.index = index;
    this.host = el("div", { class: "plot zoomable", "data-panel": index === 0 ? "plain"
      : "planned" });
    this.touches = new Map();
    this.redraw = responsive(this.host, (width) => this.draw(width));
    this.listen();
  }

  // Where a run begins and ends on the axis.
  span(run) {
    const { start } = this.timeline;
    return this.view.mode === "time" ? [start[run], start[run + 1]] : [run, run + 1];
  }

  middle(run) {
    const [from, to] = this.span(run);
    return (from + to) / 2;
  }

  // The run at a place of the axis.
  runAt(place) {
    const last = this.timeline.schedule.runs.length - 1;
    if (this.view.mode === "node") return Math.min(Math.max(Math.floor(place), 0), last);
    return this.runAtTime(place);
  }

  runAtTime(time) {
    let [low, high] = [0, this.timeline.schedule.runs.length - 1];
    while (low < high) {
      const mid = (low + high + 1) >> 1;
      if (this.timeline.start[mid] <= time) low = mid;
      else high = mid - 1;
    }
    return low;
  }

  draw(width) {
    const { view, timeline } = this;
    const { schedule } = timeline;
    const plan = view.timelines[view.timelines.length - 1].schedule;
    const highest = Math.max(...view.timelines.map((t) => t.schedule.peak), plan.budget || 0);
    this.frame = frame(width, {
      height: width < PHONE ? 210 : PANEL_HEIGHT,
      title: `${this.index ? "planned" : "plain"}: ${bytes(schedule.peak)} at the peak` +
        (width < PHONE ? "" : `, ${seconds(schedule.seconds)}`),
      label: `Live bytes over the ${schedule.name} step`,
      x: { kind: view.mode === "time" ? "seconds" : "count", domain: view.window,
        name: view.mode === "time" ? "time of the step" : "nodes run" },
      y: { kind: "bytes", domain: [0, roundUp("bytes", highest * 1.04)] },
      margin: { top: 52, left: width < PHONE ? 44 : 58 },
    });
    const { root } = this.frame;
    this.columns = this.columnsOf();
    this.drawLayers();
    this.drawAgain();
    if (this.index > 0) this.drawOutline(view.panels[0]);
    this.drawBoundaries();
    if (plan.budget !== null) this.drawBudget(plan.budget);
    this.drawPeak();
    this.cursor = svg("g", { class: "cursor-group" });
    this.brush = svg("rect", { class: "brush", width: 0 });
    root.append(this.cursor, this.brush);
    this.host.replaceChildren(root);
    this.drawCursor();
  }

  // For each column of pixels the run that needs most there, so that no peak is ever lost; null
  // past the end.
  columnsOf() {
    const { inner } = this.frame;
    const [from, to] = this.view.window;
    const pixels = Math.max(1, Math.round(inner.right - inner.left));
    const { total, schedule } = this.timeline;
    const end = this.span(schedule.runs.length - 1)[1];
    const columns = [];
    for (let p = 0; p < pixels; p++) {
      const left = from + ((to - from) * p) / pixels;
      if (left >= end) {
        columns.push(null);
        continue;
      }
      const last = this.runAt(from + ((to - from) * (p + 1)) / pixels);
      let best = this.runAt(left);
      let again = this.timeline.again[best];
      for (let run = best + 1; run <= last; run++) {
        if (total[run] > total[best]) best = run;
        again |= this.timeline.again[run];
      }
      columns.push({ run: best, again });
    }
    return columns;
  }

  drawLayers() {
    const { root, y, inner } = this.frame;
    const drawn = this.columns.filter(Boolean);
    const base = new Float64Array(drawn.length);
    this.timeline.layers.forEach((layer, index) => {
      const edge = (height, i) =>
        `${(inner.left + i).toFixed(1)} ${y(height).toFixed(1)}H${(inner.left + i + 1).toFixed(1)}`;
      const bottom = Array.from(base);
      drawn.forEach((column, i) => { base[i] += layer[column.run]; });
      const top = Array.from(base, edge);
      const back =
        bottom.map((height, i) =>
        `${(inner.left + i + 1).toFixed(1)} ${y(height).toFixed(1)}H${(inner.left + i).toFixed(1)}`)
        .reverse();
      root.append(svg("path", { class: "layer", fill: colour(index),
        d: `M${top.join("L")}L${back.join("L")}Z` }));
    });
  }

  drawAgain() {
    const { root, inner } = this.frame;
    const ticks = this.columns.map((column, i) => (column?.again
      ? `M${inner.left + i + 0.5} ${inner.bottom + 1}v${AGAIN_HEIGHT}` : "")).join("");
    if (ticks) root.append(svg("path", { class: "again", stroke: AGAIN_COLOUR, d: ticks }));
  }

  // The plain step's outline, so that the eye has both in one picture.
  drawOutline(plain) {
    const { root, y, inner } = this.frame;
    const drawn = (plain.columns || []).map((column, i) => (column
      ? `${inner.left + i} ${y(plain.timeline.total[column.run]).toFixed(1)}` : null))
      .filter(Boolean);
    if (drawn.length) root.append(svg("path", { class: "outline", d: `M${drawn.join("L")}` }));
  }

  drawBoundaries() {
    const { root, x, inner } = this.frame;
    const [from, to] = this.view.window;
    const marks = [["forward", 0], ["backward", this.timeline.backward],
      ["first update", this.timeline.update]].filter(([, run]) => run >= 0);
    let free = -Infinity;
    let row = 0;
    for (const [name, run] of marks) {
      const at = this.span(run)[0];
      if (at < from || at > to) continue;
      const px = x(at);
      row = px < free ? 1 - row : 0;
      const base = inner.top - 4 - row * 13;
      if (run > 0) root.append(svg("line", { class: "boundary", x1: px, x2: px, y1: base - 8,
        y2: inner.bottom }));
      const right = px + name.length * 6.6 + 6 > inner.right;
      root.append(svg("text", { class: "boundary-label", x: right ? px - 4 : px + 4, y: base,
        "text-anchor": right ? "end" : "start" }, name));
      free = px + name.length * 6.6 + 10;
    }
  }

  drawBudget(budget) {
    const { root, y, inner } = this.frame;
    root.append(
      svg("line", { class: "limit", x1: inner.left, x2: inner.right, y1: y(budget),
        y2: y(budget) }),
      svg("text", { class: "limit-label halo", x: inner.right - 4, y: y(budget) - 6,
        "text-anchor": "end" }, `budget ${bytes(budget)}`));
  }

  drawPeak() {
    const { root, x, y, inner } = this.frame;
    const { peak, total, step, schedule } = this.timeline;
    const at = this.middle(peak);
    const [from, to] = this.view.window;
    if (at < from || at > to) return;
    const name = step.nodes[schedule.runs[peak]].name;
    const side = x(at) > (inner.left + inner.right) / 2 ? -1 : 1;
    root.append(
      svg("circle", { class: "mark peak", cx: x(at), cy: y(total[peak]), r: 4.5 },
        svg("title", {}, `peak: ${bytes(total[peak])} at ${name}`)),
      // A narrow chart has no room for more than its title, which says the same.
      inner.right < PHONE ? "" : svg("text", { class: "strong peak-label halo", x: x(at)
        + side * 10, y: y(total[peak]) + 16, "text-anchor": side < 0 ? "end" : "start" },
        `peak ${bytes(total[peak])}`));
  }

  drawCursor() {
    if (!this.frame) return;
    const { x, inner } = this.frame;
    this.cursor.replaceChildren();
    const { panel, run } = this.view.cursor;
    const at = this.middle(run);
    if (panel !== this.index || at < this.view.window[0] || at > this.view.window[1]) return;
    this.cursor.append(svg("line", { class: "cursor", x1: x(at), x2: x(at), y1: inner.top,
      y2: inner.bottom }));
  }

  // The place on the axis under a pixel.
  placeAt(px) {
    const { inner } = this.frame;
    const [from, to] = this.view.window;
    const share = (px - inner.left) / (inner.right - inner.left);
    return from + Math.min(Math.max(share, 0), 1) * (to - from);
  }

  // The host hears everything: it stays when the drawing is replaced.
  listen() {
    const { host } = this;
    host.setAttribute("tabindex", "0");
    host.addEventListener("pointerdown", (event) => this.press(event));
    host.addEventListener("pointermove", (event) => this.moved(event));
    host.addEventListener("pointerup", (event) => this.release(event));
    host.addEventListener("pointercancel", (event) => this.forget(event));
    host.addEventListener("dblclick", () => this.view.show(this.view.whole()));
    host.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    host.addEventListener("keydown", (event) => this.key(event));
  }

  press(event) {
    const px = pointerAt(this.host, event)[0];
    this.touches.set(event.pointerId, px);
    this.host.setPointerCapture(event.pointerId);
    if (event.pointerType === "mouse" && event.button === 0) this.dragFrom = px;
  }

  moved(event) {
    const px = pointerAt(this.host, event)[0];
    if (this.touches.size === 2 && this.touches.has(event.pointerId)) {
      this.pinch(event.pointerId, px);
      return;
    }
    if (this.dragFrom !== undefined) this.drawBrush(px);
    this.view.point(this.index, this.runAt(this.placeAt(px)));
  }

  drawBrush(px) {
    const { inner } = this.frame;
    const ends = [this.dragFrom, px].map((p) => Math.min(Math.max(p, inner.left), inner.right))
      .sort((a, b) => a - b);
    for (const [name, value] of [["x", ends[0]], ["width", ends[1] - ends[0]], ["y", inner.top],
      ["height", inner.bottom - inner.top]]) this.brush.setAttribute(name, value);
  }

  release(event) {
    const px = pointerAt(this.host, event)[0];
    const from = this.dragFrom;
    this.forget(event);
    if (from !== undefined && Math.abs(px - from) >= LEAST_DRAG) {
      this.view.show([this.placeAt(from), this.placeAt(px)].sort((a, b) => a - b));
    } else if (this.touches.size === 0) {
      this.view.point(this.index, this.runAt(this.placeAt(px)));
    }
  }

  forget(event) {
    this.touches.delete(event.pointerId);
    this.dragFrom = undefined;
    this.brush.setAttribute("width", 0);
  }

  // Two fingers keep the places under them.
  pinch(moving, px) {
    const [, other] = [...this.touches].find(([id]) => id !== moving);
    const was = this.touches.get(moving);
    this.touches.set(moving, px);
    const spread = Math.abs(px - other);
    if (spread < 10) return;
    this.view.zoom(Math.abs(was - other) / spread, this.placeAt((px + other) / 2));
  }

  wheel(event) {
    const [from, to] = this.view.window;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.view.zoom(Math.exp(event.deltaY / 300), this.placeAt(pointerAt(this.host, event)[0]));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      const shift = (event.deltaX / this.host.clientWidth) * (to - from);
      this.view.show([from + shift, to + shift]);
    }
  }

  key(event) {
    const { view, index } = this;
    const run = view.cursor.panel === index ? view.cursor.run : this.timeline.peak;
    const stride = event.shiftKey ? 10 : 1;
    const last = this.timeline.schedule.runs.length - 1;
    const moves = { ArrowLeft: run - stride, ArrowRight: run + stride, Home: 0, End: last,
      p: this.timeline.peak, P: this.timeline.peak };
    const acts = { "+": () => view.zoom(0.5), "=": () => view.zoom(0.5), "-": () => view.zoom(2),
      "0": () => view.show(view.whole()), Escape: () => view.show(view.whole()) };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) view.move(index, moves[event.key]);
    else if (event.key in acts) acts[event.key]();
    else return;
    event.preventDefault();
  }
}
