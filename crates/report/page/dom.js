// Elements, and parts of the page that more than one section uses.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes,
  children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const byId = (id) => document.getElementById(id);
const bodyOf = (id) => document.querySelector(`#${id} .body`);

// A node's name, which may be broken after a dot.
const breakable = (name) => name.split(/(?<=\.)/).flatMap((part) => [part, el("wbr", {})]);

const colour = (index) => `var(--series-${index % 8})`;

function legend(entries) {
  return el("div", { class: "legend" }, entries.map(([name, fillColour]) =>
    el("span", {}, el("i", { class: "swatch", style: `background:${fillColour}` }), name)));
}

// Buttons of which one is pressed.
function choice(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) => el("button", {
    type: "button",
    "aria-pressed": String(value === chosen),
    onclick: () => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed",
        String(options[i][0] === value)));
      choose(value);
    },
  }, text));
  return el("div", { class: "group", role: "group", "aria-label": label }, buttons);
}

// A table; a column is { name, number, cell(row) }.
function table(columns, rows) {
  const head = columns.map((c) => el("th", { scope: "col", class: c.number ? "num" : "" }, c.name));
  const line = (row) => el("tr", {}, columns.map((c) => el("td",
    { class: [c.number ? "num" : "", c.class || ""].join(" ") }, c.cell(row))));
  return el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows.map(line)));
}

// What a section lacks, with the commands that make it.
function missingParts(data, section, step) {
  const lacking = data.missing.filter((m) => m.section === section
    && (m.step === null || m.step === step));
  const making = (m) => (m.command === null ? ["No command makes it."]
    : ["This makes it:", el("code", {}, m.command)]);
  return lacking.map((m) => el("div", { class: "missing" }, `There is no ${m.what} here. `,
    making(m)));
}

// Draws now and whenever the width changes.
function responsive(host, draw) {
  let width = 0;
  const observer = new ResizeObserver(() => {
    const now = Math.floor(host.clientWidth);
    if (now > 0 && now !== width) {
      width = now;
      draw(width);
    }
  });
  observer.observe(host);
  return () => width > 0 && draw(width);
}

// A note beside the pointer.
function tipOf(host) {
  const box = el("div", { class: "tip", role: "status" });
  host.append(box);
  return {
    show(x, y, ...content) {
      box.replaceChildren(...content);
      box.classList.add("on");
      const left = Math.min(Math.max(0, x - box.offsetWidth / 2),
        host.clientWidth - box.offsetWidth);
      const above = y - box.offsetHeight - 12;
      box.style.left = `${left}px`;
      box.style.top = `${above > -40 ? above : y + 14}px`;
    },
    hide: () => box.classList.remove("on"),
  };
}
