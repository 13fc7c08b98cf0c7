// Which step and which plan are shown, the figures at the top, light and dark.

const data = JSON.parse(byId("data").textContent);

const SUN = "M12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6l1.4 1.4M17 17l1.4 1.4M18.4 5.6L17 7" +
  "M7 17l-1.4 1.4M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8z";
const MOON = "M20 14.5A8 8 0 1 1 9.5 4 6.5 6.5 0 0 0 20 14.5z";

function setUpTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = byId("theme");
  // The choice of a person outweighs the system's; a page from a file may have no place to keep it.
  const keep = (value) => {
    try { localStorage.setItem("rekindle-theme", value); } catch { /* it holds for this visit */ }
  };
  const kept = () => {
    try { return localStorage.getItem("rekindle-theme"); } catch { return null; }
  };
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.replaceChildren(svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" },
      svg("path", { d: theme === "dark" ? SUN : MOON })));
  };
  apply(kept() || (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => kept() || apply(dark.matches ? "dark" : "light"));
  button.addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    keep(next);
    apply(next);
  });
}

function tile(name, value, note, good) {
  return el("div", { class: "tile" }, el("div", { class: "label" }, name),
    el("div", { class: "value" }, value), el("div", { class: `note ${good ? "good" : ""}` }, note));
}

function movedTile(moves) {
  const waits = moves.waited_seconds > 0 ? `${seconds(moves.waited_seconds)} waited`
    : "nothing waits";
  return tile("Moved", bytes(moves.moved_out + moves.moved_in),
    `${bytes(moves.moved_out)} out, ${bytes(moves.moved_in)} in; ` +
    `${seconds(moves.hidden_seconds)} hidden, ${waits}`);
}

function renderTiles(step, plan) {
  const plain = step.schedules[0];
  const tiles = [];
  if (plain) tiles.push(tile("Plain step", bytes(plain.peak), `${seconds(plain.seconds)} a step`));
  if (plan) {
    const again = plan.decisions.filter((d) => d.recomputed > 0).length;
    tiles.push(tile("Planned step", [bytes(plan.peak), el("small", {},
      ` ${percent(plan.peak / plain.peak - 1)}`)], `in a budget of ${bytes(plan.budget)}`));
    tiles.push(tile("Time added", change(plan.seconds / plain.seconds - 1),
      `${seconds(plan.seconds)} a step, from ${seconds(plain.seconds)}`));
    tiles.push(tile("Recomputed", `${count(again)} of ${count(plan.decisions.length)}`,
      `activations; ${count(plan.runs.length - plain.runs.length)} more node runs`));
    if (plan.transfers) tiles.push(movedTile(plan.transfers));
  }
  const measured = data.comparisons.find((row) => row.model === step.model
    && row.batch === step.batch && row.planned_peak !== null);
  if (measured) {
    const exact = measured.predicted_peak === measured.planned_peak;
    tiles.push(tile("Measured", bytes(measured.planned_peak),
      [exact ? "the predicted arena, to the byte" : `predicted ${bytes(measured.predicted_peak)}`,
      measured.bit_equal ? "; every bit the same" : ""], exact));
  }
  byId("tiles").classList.toggle("many", tiles.length > 5);
  byId("tiles").replaceChildren(...tiles);
}

function leadOf(step, plan) {
  const plain = step.schedules[0];
  if (!plain) return "A profile without its graph: what was measured, but no memory over the step.";
  const runs = plain.runs.length;
  const begin = `${count(runs)} nodes a step, ${count(step.activations.length)} activations.`;
  if (!plan) return `${begin} No plan is here yet.`;
  const stored = plan.transfers?.stored_at_start || 0;
  return `${begin} The plan keeps the whole step under ${bytes(plan.budget)}, ` +
    "parameters, gradients and optimizer state included." +
    (stored > 0 ? ` Between steps, ${bytes(stored)} of them live in the store.` : "");
}

function show(index, chosen = 1) {
  const step = data.steps[index];
  const plan = step.schedules[chosen] || null;
  const timelines = [step.schedules[0], plan].filter(Boolean)
    .map((schedule) => timelineOf(step, schedule));
  document.querySelectorAll("#tabs button").forEach((tab, i) =>
    tab.setAttribute("aria-selected", String(i === index)));
  byId("name").textContent = step.name;
  byId("lead").replaceChildren(leadOf(step, plan), step.schedules.length > 2
    ? planChoice(step, index, chosen) : "");
  renderTiles(step, plan);
  renderMemory(bodyOf("memory"), step, timelines, missingParts(data, "memory", index));
  renderPeak(bodyOf("peak"), data, step, timelines, plan, index);
  renderFrontier(bodyOf("frontier"), data, step, plan, index);
  renderActivations(bodyOf("activations"), data, step, plan, index);
  renderProfile(bodyOf("profile"), data, step, plan, index);
  renderBatches(bodyOf("batches"), data, step, index);
}

function planChoice(step, index, chosen) {
  const options = step.schedules.slice(1).map((s, i) => el("option",
    { value: i + 1, selected: i + 1 === chosen }, s.name));
  return el("span", {}, " Plan: ", el("select", { "aria-label": "Plan", onchange: (event) =>
    show(index, Number(event.target.value)) }, options));
}

function start() {
  setUpTheme();
  const tabs = data.steps.map((step, i) => el("button", { type: "button", role: "tab",
    onclick: () => { show(i); scrollTo(0, 0); } }, step.name));
  byId("tabs").setAttribute("role", "tablist");
  byId("tabs").replaceChildren(...(tabs.length > 1 ? tabs : []));
  byId("made").textContent =
    `Made by rekindle ${data.version}. This file needs no network; its data are inside.`;
  renderTraining(byId("training"), data.training);
  if (data.steps.length) show(0);
}

start();
