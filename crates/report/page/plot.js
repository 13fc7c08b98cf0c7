// The frame around data: scales, ticks, grid, axis names.

const MARGIN = { left: 58, right: 12, top: 34, bottom: 40 };

// { root, x, y, inner } for a plot of `width`: x and y map values to pixels; `inner` is the box of
// the data.
function frame(width, options) {
  const margin = { ...MARGIN, ...options.margin };
  const inner = { left: margin.left, right: width - margin.right, top: margin.top,
    bottom: options.height - margin.bottom };
  const root = svg("svg", { viewBox: `0 0 ${width} ${options.height}`, height: options.height,
    role: "img", "aria-label": options.label });
  const [x0, x1] = options.x.domain;
  const [y0, y1] = options.y.domain;
  const x = (value) => inner.left + ((value - x0) / (x1 - x0 || 1)) * (inner.right - inner.left);
  const y = (value) => inner.bottom - ((value - y0) / (y1 - y0 || 1)) * (inner.bottom - inner.top);
  if (options.title) root.append(svg("text", { x: inner.left, y: 16, class: "title" },
    options.title));
  const up = ticksOf(options.y.kind, y0, y1, options.height > 280 ? 6 : 4);
  for (const { value, label } of up.ticks) {
    root.append(
      svg("line", { class: "grid", x1: inner.left, x2: inner.right, y1: y(value), y2: y(value) }),
      svg("text", { x: inner.left - 8, y: y(value) + 4, "text-anchor": "end", class: "y-tick" },
        label));
  }
  // The unit stands at the head of the axis, where a turned name would cost width.
  root.append(svg("text", { x: inner.left - 8, y: inner.top - 12, "text-anchor": "end",
    class: "y-unit" }, up.unit));
  root.append(svg("line", { class: "axis", x1: inner.left, x2: inner.right, y1: inner.bottom,
    y2: inner.bottom }));
  if (options.x.categories) {
    options.x.categories.forEach((name, i) => root.append(svg("text",
      { x: x(i + 0.5), y: inner.bottom + 18, "text-anchor": "middle", class: "x-tick" }, name)));
    root.append(axisName(options, inner, options.x.name));
  } else {
    const across = ticksOf(options.x.kind, x0, x1, (inner.right - inner.left) / (width < PHONE ? 60
      : 90));
    for (const { value, label } of across.ticks) {
      root.append(svg("text", { x: x(value), y: inner.bottom + 18, "text-anchor": "middle",
        class: "x-tick" }, label));
    }
    root.append(axisName(options, inner, across.unit ? `${options.x.name} (${across.unit})`
      : options.x.name));
  }
  return { root, x, y, inner };
}

function axisName(options, inner, text) {
  return svg("text", { x: (inner.left + inner.right) / 2, y: options.height - 6,
    "text-anchor": "middle", class: "x-name" }, text);
}

// The round number at or above `value` where an axis ends.
function roundUp(kind, value) {
  const { ticks } = ticksOf(kind, 0, value || 1, 5);
  const step = ticks.length > 1 ? ticks[1].value - ticks[0].value : value;
  return Math.ceil(value / step - 1e-9) * step || 1;
}

// A text that keeps inside [left, right], with a halo over the data.
function label(text, at, [left, right], attributes) {
  const half = text.length * 3.4;
  const x = Math.min(Math.max(at[0], left + half), right - half);
  return svg("text", { x, y: at[1], "text-anchor": "middle", ...attributes,
    class: `halo ${attributes?.class || ""}` }, text);
}

// Where the pointer is, in the units of the drawing.
function pointerAt(root, event) {
  const box = root.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

// Shows the note of the mark that is nearest to the pointer, and walks over the marks with the
// arrow keys.
function nearestTip(host, root, marks) {
  const tip = tipOf(host);
  let current = -1;
  const show = (i) => {
    current = i;
    tip.show(marks[i].x, marks[i].y, ...marks[i].about());
  };
  root.addEventListener("pointermove", (event) => {
    const [px, py] = pointerAt(root, event);
    const distance = (mark) => Math.hypot(mark.x - px, mark.y - py);
    const best = marks.reduce((a, mark, i) => (distance(mark) < distance(marks[a]) ? i : a), 0);
    if (marks.length && distance(marks[best]) < 60) show(best);
    else tip.hide();
  });
  root.addEventListener("pointerleave", () => tip.hide());
  root.setAttribute("tabindex", "0");
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !marks.length) return;
    event.preventDefault();
    show(Math.min(Math.max(current + step, 0), marks.length - 1));
  });
  root.addEventListener("blur", () => tip.hide());
}
