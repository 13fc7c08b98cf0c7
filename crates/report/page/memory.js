// Memory over the step: the plain step and the plan, one above the other, on the same scales.

// A schedule with its step, and where its phases begin.
function timelineOf(step, schedule) {
  const firstOf = (phase) => schedule.runs.findIndex((node) => step.nodes[node].phase === phase);
  const { layers, total, start, again, peak_run: peak } = schedule;
  return {
    step, schedule, layers, total, start, again, peak,
    backward: firstOf("backward"), update: firstOf("optimizer"),
  };
}

// The tensors that are live at a run, largest first, without those that are there all the time.
function liveAt(timeline, run) {
  const { step, schedule } = timeline;
  const last = schedule.runs.length - 1;
  const passing = schedule.lives.filter(([, from, to]) => from <= run && run <= to
    && !(from === 0 && to === last));
  const tensors = passing.map(([tensor]) => step.tensors[tensor]);
  return tensors.sort((a, b) => b.bytes - a.bytes || (a.name < b.name ? -1 : 1));
}

function renderMemory(host, step, timelines, missing) {
  host.replaceChildren(...missing);
  if (!timelines.length) return;
  const view = new MemoryView(step, timelines);
  host.prepend(view.card);
}

// The longest list of live tensors.
const LIVE_SHOWN = 8;
// The deepest zoom shows this many runs, about.
const FEWEST_RUNS = 4;

class MemoryView {
  constructor(step, timelines) {
    this.step = step;
    this.timelines = timelines;
    this.mode = "time";
    this.cursor = { panel: timelines.length - 1, run: timelines[timelines.length - 1].peak };
    this.panels = timelines.map((timeline, index) => new MemoryPanel(this, timeline, index));
    this.moment = el("div", { class: "moment", "aria-live": "polite" });
    const entries = step.layers.map((name, i) => [name, colour(i)]);
    if (timelines.length > 1) entries.push(["recomputing", AGAIN_COLOUR]);
    const last = timelines[timelines.length - 1];
    this.lanes = last.schedule.transfers ? new Lanes(this, last) : null;
    if (this.lanes) entries.push(["to the store", OUT_COLOUR], ["from the store", IN_COLOUR],
      ["waiting", "var(--ink)"]);
    const zoomButton = (text, about, act) => el("button", { type: "button", "aria-label": about,
      title: about, onclick: act }, text);
    this.card = el("div", { class: "card" },
      el("div", { class: "tools" },
        legend(entries), el("span", { class: "grow" }),
        choice("Across", [["time", "by time"], ["node", "by node"]], this.mode, (mode) =>
          this.setMode(mode)),
        el("div", { class: "group", role: "group", "aria-label": "Zoom" },
          zoomButton("−", "Zoom out", () => this.zoom(2)),
          zoomButton("+", "Zoom in", () => this.zoom(0.5)),
          zoomButton("Reset", "Show the whole step", () => this.show(this.whole())))),
      this.panels.map((panel) => panel.host), this.lanes?.host,
      el("p", { class: "hint mouse-only" }, "Drag to zoom, ", el("kbd", {}, "Ctrl"),
        " + wheel too; double-click for the whole step. With the keyboard: ",
        el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " moves, ", el("kbd", {}, "+"), " ",
          el("kbd", {}, "−"), " zooms, ", el("kbd", {}, "P"), " goes to the peak."),
      el("p", { class: "hint touch-only" }, "Slide a finger to look around; pinch to zoom."),
      this.moment);
    this.show(this.whole());
  }

  // The panel of the plan.
  planned() {
    return this.panels[this.panels.length - 1];
  }

  // From 0 to the end of the longest schedule, in the units of the axis.
  whole() {
    const end = (t) => (this.mode === "time" ? t.start[t.schedule.runs.length]
      : t.schedule.runs.length);
    return [0, Math.max(...this.timelines.map(end))];
  }

  setMode(mode) {
    this.mode = mode;
    this.show(this.whole());
  }

  show([from, to]) {
    const [low, high] = this.whole();
    const longest = Math.max(...this.timelines.map((t) => t.schedule.runs.length));
    const span = Math.min(Math.max(to - from, (high - low) * FEWEST_RUNS / longest), high - low);
    const start = Math.min(Math.max(from, low), high - span);
    this.window = [start, start + span];
    this.panels.forEach((panel) => panel.redraw());
    this.lanes?.redraw();
    this.tell();
  }

  // Makes the window `factor` times as wide, with `at` (or the cursor, or the middle) where it is.
  zoom(factor, at) {
    const [from, to] = this.window;
    const cursor = this.panels[this.cursor.panel].middle(this.cursor.run);
    const still = at ?? (cursor >= from && cursor <= to ? cursor : (from + to) / 2);
    this.show([still - (still - from) * factor, still + (to - still) * factor]);
  }

  point(panel, run) {
    this.cursor = { panel, run };
    this.panels.forEach((each) => each.drawCursor());
    this.lanes?.drawCursor();
    this.tell();
  }

  // Moves the cursor, and the window with it.
  move(panel, run) {
    const last = this.timelines[panel].schedule.runs.length - 1;
    const to = Math.min(Math.max(run, 0), last);
    const at = this.panels[panel].middle(to);
    const [from, end] = this.window;
    this.cursor = { panel, run: to };
    if (at < from || at > end) this.show([at - (end - from) / 2, at + (end - from) / 2]);
    else this.point(panel, to);
  }

  // The node under the cursor, and what is live.
  tell() {
    const { panel, run } = this.cursor;
    const timeline = this.timelines[panel];
    const { step, schedule } = timeline;
    const node = step.nodes[schedule.runs[run]];
    const live = liveAt(timeline, run);
    const total = timeline.total[run];
    const amounts = step.layers.map((name, i) => [name, timeline.layers[i][run], i]).reverse();
    this.moment.replaceChildren(
      el("div", {},
        el("div", { class: "node" }, breakable(node.name)),
        el("div", { class: "what" },
          el("span", { class: `badge ${timeline.again[run] ? "recomputed" : ""}` },
            timeline.again[run] ? "recomputed" : node.phase),
          ` ${node.op}, ${seconds(node.seconds)}; run ${count(run + 1)} of ` +
            `${count(schedule.runs.length)}, ${panel === 0 ? "plain step" : "planned step"}`,
          run === timeline.peak ? el("b", {}, " · the peak") : null),
        movingAt(timeline, run).map(([what, text]) => el("div", { class: "what moving" },
          el("b", {}, `${what} `), text)),
        el("dl", { class: "amounts" },
          amounts.map(([name, size, i]) => [
            el("dt", {}, el("i", { class: "swatch", style: `background:${colour(i)}` }), name),
            el("dd", {}, bytes(size)), el("dd", { class: "share" }, percent(size / total))]),
          el("dt", { class: "total" }, "live in all"), el("dd", { class: "total" }, bytes(total)),
            el("dd", {}, ""))),
      el("div", {},
        el("h3", {}, `${count(live.length)} tensors come and go; the largest live now`),
        el("dl", { class: "amounts live" }, live.slice(0, LIVE_SHOWN).map((tensor) => [
          el("dt", { class: "name" }, el("i", { class: "swatch",
            style: `background:${colour(tensor.layer)}` }),
            el("span", { style: "overflow-wrap:anywhere" }, breakable(tensor.name))),
          el("dd", {}, bytes(tensor.bytes)), el("dd", { class: "share" },
            percent(tensor.bytes / total))]))));
  }
}
