// Numbers as a person reads them.

const KIB = 1024;
const BYTE_UNITS = [[KIB ** 4, "TiB"], [KIB ** 3, "GiB"], [KIB ** 2, "MiB"], [KIB, "KiB"],
  [1, "B"]];
const TIME_UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];

function unitFor(units, value) {
  return units.find(([factor]) => Math.abs(value) >= factor) || units[units.length - 1];
}

function inUnit(units, value, zero) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  if (value === 0) return zero;
  const [factor, name] = unitFor(units, value);
  const number = value / factor;
  // Whole bytes have no fraction; everything else has three digits at least.
  const digits = factor === 1 && units === BYTE_UNITS ? 0 : Math.abs(number) >= 100 ? 1 : 2;
  return `${number.toFixed(digits)} ${name}`.replace("-", "−");
}

const bytes = (value) => inUnit(BYTE_UNITS, value, "0 B");
const seconds = (value) => inUnit(TIME_UNITS, value, "0 s");
const count = (value) => value.toLocaleString("en-US");

function percent(share, digits = 1) {
  if (share === null || share === undefined || !isFinite(share)) return "–";
  return `${(100 * share).toFixed(digits)} %`.replace("-", "−");
}

// With a sign, except for nothing.
function change(share) {
  const text = percent(share);
  return share > 0 && text !== "0.0 %" ? `+${text}` : text.replace("−0.0", "0.0");
}

// Round ticks of [low, high], in the unit that suits the largest: { unit, ticks: [{ value, label }]
// }.
function ticksOf(kind, low, high, wanted) {
  const units = kind === "bytes" ? BYTE_UNITS : kind === "seconds" ? TIME_UNITS
    : [[kind === "percent" ? 0.01 : 1, kind === "percent" ? "%" : ""]];
  const [factor, unit] = unitFor(units, Math.max(Math.abs(low), Math.abs(high)));
  const rough = Math.max((high - low) / factor, 1e-12) / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].find((times) => times * power >= rough * (1 - 1e-9)) * power;
  if (kind === "count") step = Math.max(1, Math.round(step));
  // As many decimals as the step has.
  let digits = 0;
  while (digits < 4 && Math.abs(step * 10 ** digits - Math.round(
    step * 10 ** digits)) > 1e-6) digits++;
  const ticks = [];
  for (let i = Math.ceil(low / factor / step - 1e-9); i * step <= high / factor + 1e-9; i++) {
    const number = i * step;
    ticks.push({ value: number * factor, label: kind === "count" ? count(number)
      : number.toFixed(digits) });
  }
  return { unit, ticks };
}
