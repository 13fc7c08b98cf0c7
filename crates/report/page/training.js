// The curves of a training run: the loss of every update, and what evaluations found.

const LOSS_COLOUR = colour(0);
const VALIDATION_COLOUR = colour(1);

function renderTraining(section, runs) {
  section.hidden = runs.length === 0;
  const host = section.querySelector(".body");
  host.replaceChildren(...runs.map((run) => {
    const plot = el("div", { class: "plot" });
    const entries = [["loss of the updates", LOSS_COLOUR]];
    if (run.evaluations.length) entries.push(["loss of the evaluations", VALIDATION_COLOUR]);
    responsive(plot, (width) => drawTraining(plot, width, run));
    return el("div", { class: "card" }, el("div", { class: "tools" }, legend(entries)), plot,
      bestHint(run));
  }));
}

function bestHint(run) {
  const best = run.evaluations.reduce((a, b) => (a && a.loss <= b.loss ? a : b), null);
  return best ? el("div", { class: "hint" }, el("b", {}, "best"), ` after update ` +
    `${count(best.update)}: loss ${best.loss.toFixed(4)}, accuracy ${percent(best.accuracy)}`)
    : null;
}

function drawTraining(host, width, run) {
  const points = [...run.updates, ...run.evaluations].filter((p) => Number.isFinite(p.loss));
  if (!points.length) return;
  const losses = points.map((p) => p.loss);
  const low = Math.min(0, ...losses);
  const { root, x, y } = frame(width, {
    height: width < PHONE ? 240 : 320,
    label: "Loss over the updates",
    title: "loss",
    x: { kind: "count", domain: [0, Math.max(...points.map((p) => p.update))], name: "update" },
    y: { kind: "number", domain: [low, roundUp("number", Math.max(...losses))] },
  });
  const line = (all) => `M${all.map((p) => `${x(p.update)} ${y(p.loss)}`).join("L")}`;
  if (run.updates.length) root.append(svg("path", { class: "curve loss", stroke: LOSS_COLOUR,
    d: line(run.updates) }));
  const marks = [];
  if (run.evaluations.length) {
    root.append(svg("path", { class: "curve evaluated", stroke: VALIDATION_COLOUR,
      d: line(run.evaluations) }));
    for (const p of run.evaluations) {
      root.append(svg("circle", { class: "dot point", cx: x(p.update), cy: y(p.loss), r: 4,
        fill: VALIDATION_COLOUR }));
      marks.push({ x: x(p.update), y: y(p.loss), about: () => [el("b", {},
        `update ${count(p.update)}`), `loss ${p.loss.toFixed(4)}`, el("br"),
        `accuracy ${percent(p.accuracy)}`] });
    }
  }
  host.replaceChildren(root);
  nearestTip(host, root, marks);
}
