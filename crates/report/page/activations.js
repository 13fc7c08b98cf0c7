// The table of activations: sortable, searchable, filtered by what the plan does.

function renderActivations(host, data, step, plan, stepIndex) {
  host.replaceChildren(...missingParts(data, "activations", stepIndex));
  if (step.activations.length) host.prepend(new ActivationTable(step, plan).root);
}

const DECISIONS = ["kept", "recomputed", "moved"];

// What a plan does with an activation.
const decisionOf = (row) => DECISIONS[row.moved ? 2 : row.recomputed ? 1 : 0];

const ACTIVATION_COLUMNS = [
  { key: "name", name: "activation", class: "name", cell: (row) => breakable(row.name) },
  { key: "bytes", name: "size", number: true, cell: (row) => bytes(row.bytes) },
  { key: "decision", name: "decision", plan: true, cell: (row) =>
    el("span", { class: `badge ${row.kind}` }, row.decision) },
  { key: "inactive_seconds", name: "inactive", number: true, cell: (row) =>
    seconds(row.inactive_seconds) },
  { key: "recompute_seconds", name: "recompute", number: true, cell: (row) =>
    (row.recompute_seconds === null ? "cannot" : seconds(row.recompute_seconds)) },
  { key: "swap_seconds", name: "swap", number: true, optional: true, cell: (row) =>
    seconds(row.swap_seconds) },
  { key: "spent_seconds", name: "spent", number: true, plan: true, cell: (row) =>
    (row.recomputed ? seconds(row.spent_seconds) : "–") },
  { key: "reason", name: "reason", class: "reason", plan: true, cell: (row) => row.reason },
];

class ActivationTable {
  constructor(step, plan) {
    const decided = plan && plan.decisions.length === step.activations.length;
    this.rows = step.activations.map((activation, i) => {
      const decision = decided ? plan.decisions[i] : {};
      const kind = decisionOf(decision);
      const times = decision.recomputed || decision.moved || 0;
      return { ...activation, ...decision, kind, decision: times > 1 ? `${kind} ${times} ×`
        : kind };
    });
    this.columns = ACTIVATION_COLUMNS.filter((c) => (!c.plan || decided)
      && (!c.optional || this.rows.some((row) => row[c.key] !== null)));
    this.sort = { key: "bytes", down: true };
    this.words = "";
    this.kind = "all";
    this.summary = el("span", { class: "hint", style: "margin:0", role: "status" });
    const search = el("input", { type: "search", placeholder: "Search by name or reason",
      "aria-label": "Search the activations", oninput: (event) => { this.words =
      event.target.value.toLowerCase(); this.draw(); } });
    const words = ["all", ...DECISIONS.filter((word) => word !== "moved" || plan?.transfers)];
    const kinds = decided ? choice("Show", words.map((word) => [word, word]), "all", (kind) => {
      this.kind = kind;
      this.draw();
    }) : null;
    this.head = el("tr", {});
    this.body = el("tbody", {});
    this.root = el("div", {},
      el("div", { class: "tools" }, search, kinds, el("span", { class: "grow" }), this.summary),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Activations" },
        el("table", {}, el("thead", {}, this.head), this.body)));
    this.draw();
  }

  shown() {
    const { key, down } = this.sort;
    const matches = (row) => !this.words || `${row.name} ${row.reason || ""}`.toLowerCase()
      .includes(this.words);
    const wanted = (row) => this.kind === "all" || this.kind === row.kind;
    const order = (a, b) => {
      const [p, q] = [a[key], b[key]];
      // What has no value comes last, whichever way.
      if (p === null || q === null) return (p === null) - (q === null);
      const ascending = typeof p === "string" ? p.localeCompare(q, "en", { numeric: true }) : p - q;
      return down ? -ascending : ascending;
    };
    return this.rows.filter((row) => matches(row) && wanted(row))
      .sort((a, b) => order(a, b) || a.created - b.created);
  }

  draw() {
    const rows = this.shown();
    this.head.replaceChildren(...this.columns.map((c) => el("th", {
      scope: "col", class: c.number ? "num" : "",
      "aria-sort": this.sort.key === c.key ? (this.sort.down ? "descending" : "ascending") : "none",
    }, el("button", { type: "button", "data-key": c.key, onclick: () => this.sortBy(c) },
      c.name))));
    this.body.replaceChildren(...rows.map((row) => el("tr", {},
      this.columns.map((c) => el("td", { class: [c.number ? "num" : "", c.class || ""].join(" ") },
      c.cell(row))))));
    this.summary.textContent =
      `${count(rows.length)} of ${count(this.rows.length)}, ` +
      bytes(rows.reduce((sum, row) => sum + row.bytes, 0));
  }

  sortBy(column) {
    const again = this.sort.key === column.key;
    this.sort = { key: column.key, down: again ? !this.sort.down : Boolean(column.number) };
    this.draw();
    this.head.querySelector(`[data-key="${column.key}"]`).focus();
  }
}
