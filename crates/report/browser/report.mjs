// The report in a real browser: `node report.mjs PAGE.html PICTURES_FOLDER`, with playwright-core
// beside it.
//
// The page must load without a complaint, show every section, answer pointer, keyboard and fingers,
// and fit a phone. It is looked at on a desk and on a phone, light and dark, and a picture of each
// is left in the folder.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [file, folder, modules, executablePath] = process.argv.slice(2).map((path) => resolve(path));
const { chromium } = createRequire(join(modules, "x.js"))("playwright-core");

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const SCREENS = [
  { name: "desk-light", viewport: { width: 1280, height: 900 }, colorScheme: "light" },
  { name: "desk-dark", viewport: { width: 1280, height: 900 }, colorScheme: "dark" },
  { name: "phone-light", viewport: { width: 390, height: 844 }, colorScheme: "light",
    isMobile: true, hasTouch: true },
  { name: "phone-dark", viewport: { width: 360, height: 740 }, colorScheme: "dark", isMobile: true,
    hasTouch: true },
];

// The plans of the page: one moves tensors to a store, the other recomputes alone.
const MOVING = 1;
const RECOMPUTING = 2;

const choosePlan = (page, index) => page.getByLabel("Plan").selectOption(String(index));
const text = (page, selector) => page.locator(selector).first().innerText();
const planned = '[data-panel="planned"]';
const moment = ".moment .node";

async function everySectionIsThere(page) {
  for (const [selector, least] of [
    [".tile", 4], ['[data-panel="plain"] path.layer', 5], [`${planned} path.layer`, 5],
      [`${planned} .boundary`, 1],
    [`${planned} .limit`, 1], [`${planned} .peak`, 1], ["#peak .parts", 2], ["#peak table", 2],
      ["#frontier circle.point", 3],
    ["#frontier .chosen", 1], ["#frontier .beside", 2], ["#frontier circle.stored", 2],
      ["#activations tbody tr", 10],
      ["#profile .column", 20],
    ["#profile circle.point", 10], ["#batches rect.bar", 4], ["#batches .curve", 2],
      ["#batches tbody tr", 2],
  ]) {
    const found = await page.locator(selector).count();
    assert.ok(found >= least, `${selector}: ${found}, expected ${least} at least`);
  }
  assert.equal(await page.locator(".missing").count(), 0, "nothing is missing");
  assert.doesNotMatch(await text(page, "body"), /NaN|undefined|null|\[object|Infinity/);
}

// The page adds up lives; the planner counted bytes. They must agree.
async function thePeakIsThePlans(page) {
  const { schedules } = await page.evaluate(() => JSON.parse(document.getElementById("data")
    .textContent).steps[0]);
  for (const [panel, schedule] of [["plain", schedules[0]],
    ["planned", schedules[RECOMPUTING]]]) {
    const shown = await page.locator(`[data-panel="${panel}"] .peak title`).textContent();
    const [, number, unit] = /peak: ([\d.]+) (\w+)/.exec(shown);
    const bytes = number * { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 }[unit];
    assert.ok(Math.abs(bytes / schedule.peak - 1) < 0.002,
      `${shown} is not ${schedule.peak} bytes`);
  }
}

// The place of a share of a panel's width, on the screen.
async function placeOn(page, share) {
  await page.locator(planned).scrollIntoViewIfNeeded();
  const box = await page.locator(`${planned} svg`).boundingBox();
  return [box.x + 60 + share * (box.width - 80), box.y + box.height / 2];
}

async function hoveringShowsNodeAndLiveSet(page) {
  await page.mouse.move(...await placeOn(page, 0.2));
  const early = await text(page, moment);
  assert.match(await text(page, ".moment .what"), /forward/);
  await page.mouse.move(...await placeOn(page, 0.8));
  assert.notEqual(await text(page, moment), early, "another moment has another node");
  assert.match(await text(page, ".moment .what"), /backward|optimizer|recomputed/);
  assert.ok(await page.locator(".moment .live .name").count() >= 3, "live tensors are listed");
  assert.ok(await page.locator(`${planned} .cursor`).count() === 1);
}

const ticks = (page) => page.locator(`${planned} .x-tick`).allTextContents();

async function draggingZoomsAndBothPanelsFollow(page) {
  const whole = await ticks(page);
  await page.mouse.move(...await placeOn(page, 0.4));
  await page.mouse.down();
  await page.mouse.move(...await placeOn(page, 0.5), { steps: 4 });
  await page.mouse.up();
  const near = await ticks(page);
  assert.notDeepEqual(near, whole);
  assert.deepEqual(await page.locator('[data-panel="plain"] .x-tick').allTextContents(), near);
  await page.getByRole("button", { name: "Show the whole step" }).click();
  assert.deepEqual(await ticks(page), whole);
  await page.mouse.move(...await placeOn(page, 0.5));
  await page.keyboard.down("Control");
  await page.mouse.wheel(0, -300);
  await page.keyboard.up("Control");
  await page.waitForFunction(([selector, was]) => [...document.querySelectorAll(selector)].map(
    (t) => t.textContent).join() !== was,
    [`${planned} .x-tick`, whole.join()]);
  await page.mouse.dblclick(...await placeOn(page, 0.5));
  assert.deepEqual(await ticks(page), whole);
}

async function keysMoveAndZoom(page) {
  await page.locator(planned).focus();
  await page.keyboard.press("p");
  assert.match(await text(page, ".moment .what"), /the peak/);
  const at = await text(page, ".moment .what");
  await page.keyboard.press("ArrowRight");
  assert.notEqual(await text(page, ".moment .what"), at);
  const whole = await ticks(page);
  await page.keyboard.press("+");
  assert.notDeepEqual(await ticks(page), whole);
  await page.keyboard.press("0");
  assert.deepEqual(await ticks(page), whole);
}

async function fingersLookAround(page) {
  const before = await text(page, moment);
  await page.touchscreen.tap(...await placeOn(page, 0.1));
  assert.notEqual(await text(page, moment), before);
  const whole = await ticks(page);
  await page.getByRole("button", { name: "Zoom in" }).tap();
  assert.notDeepEqual(await ticks(page), whole);
  await page.getByRole("button", { name: "Show the whole step" }).tap();
}

async function theTableSortsAndSearches(page) {
  const column = (n) => page.locator(`#activations tbody td:nth-child(${n})`).allInnerTexts();
  const size = (shown) => parseFloat(shown) * { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 }[
    shown.split(" ")[1]];
  const sorted = (list, sign) => list.every((value, i) => i === 0
    || sign * (size(value) - size(list[i - 1])) >= 0);
  assert.ok(sorted(await column(2), -1), "largest first");
  await page.locator('#activations [data-key="bytes"]').click();
  assert.ok(sorted(await column(2), 1), "smallest first");
  await page.locator('#activations [data-key="name"]').click();
  const names = await column(1);
  assert.deepEqual(names, [...names].sort((a, b) => a.localeCompare(b, "en", { numeric: true })));
  await page.getByLabel("Search the activations").fill("norm1");
  const found = await column(1);
  assert.ok(found.length > 0 && found.length < names.length
    && found.every((name) => name.includes("norm1")));
  await page.getByLabel("Search the activations").fill("");
  await page.getByRole("group", { name: "Show", exact: true }).getByText("recomputed").click();
  const decisions = await page.locator("#activations tbody .badge").allInnerTexts();
  assert.ok(decisions.length > 0 && decisions.every((word) => word.startsWith("recomputed")));
  await page.getByRole("group", { name: "Show", exact: true }).getByText("all").click();
}

const lane = (page, name) => page.locator(`.lanes [data-lane="${name}"]`);

async function transfersHaveLanes(page) {
  assert.equal(await page.locator(".lanes").count(), 0, "nothing is moved, nothing is drawn");
  await choosePlan(page, MOVING);
  await page.waitForSelector(".lanes svg");
  for (const name of ["compute", "out", "in"]) {
    assert.match(await lane(page, name).getAttribute("d"), /^M/, name);
  }
  const { transfers } = await page.evaluate((index) => JSON.parse(document.getElementById("data")
    .textContent).steps[0].schedules[index], MOVING);
  assert.ok(transfers.out.length > 0 && transfers.in.length > 0);
  assert.match(await text(page, ".tiles"), /Moved/);
  assert.equal(await page.locator("#peak .moves tbody tr:last-child b").first().innerText(),
    "in all");
  const whole = await lane(page, "out").getAttribute("d");
  await page.getByRole("button", { name: "Zoom in" }).click();
  assert.notEqual(await lane(page, "out").getAttribute("d"), whole, "lanes follow the zoom");
  await page.getByRole("button", { name: "by node" }).click();
  assert.match(await lane(page, "compute").getAttribute("d"), /^M/);
  await page.getByRole("button", { name: "by time" }).click();
  assert.equal(await lane(page, "out").getAttribute("d"), whole);
  await page.getByRole("group", { name: "Show", exact: true }).getByText("moved").click();
  const decisions = await page.locator("#activations tbody .badge").allInnerTexts();
  assert.ok(decisions.length > 0 && decisions.every((word) => word.startsWith("moved")));
  assert.doesNotMatch(await text(page, "body"), /NaN|undefined|null|\[object|Infinity/);
}

async function pointingAtALaneTellsWhatIsCopied(page) {
  await page.locator(".lanes").scrollIntoViewIfNeeded();
  const { tensors, schedules } = await page.evaluate(() => JSON.parse(
    document.getElementById("data").textContent).steps[0]);
  const plan = schedules[MOVING];
  const longest = plan.transfers.out.reduce((a, b) => (b.ended - b.began > a.ended - a.began ? b
    : a));
  const box = await page.locator(".lanes svg").boundingBox();
  const end = Math.max(...schedules.slice(0, MOVING + 1).map((s) => s.seconds));
  const share = (longest.began + longest.ended) / 2 / end;
  const row = await lane(page, "out").boundingBox();
  await page.mouse.move(box.x + 58 + share * (box.width - 70), row.y + row.height / 2);
  const told = await text(page, ".lanes .tip");
  const name = tensors[longest.tensor].name;
  assert.ok(told.includes(name) && told.includes("to the store"), `${told} is not of ${name}`);
}

async function thePageFits(page) {
  const [wide, screen] = await page.evaluate(() => [document.documentElement.scrollWidth,
    innerWidth]);
  assert.ok(wide <= screen, `the page is ${wide} wide on a screen of ${screen}`);
  const small = await page.evaluate(() => [...document.querySelectorAll("button")].filter((b) =>
    b.offsetHeight && b.offsetHeight < 20 && !b.closest("th")).length);
  assert.equal(small, 0, "buttons are large enough for a finger");
}

async function theThemeSwitches(page, scheme) {
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(await ground(), scheme === "dark" ? "rgb(15, 20, 26)" : "rgb(255, 255, 255)");
  const before = await ground();
  await page.locator("#theme").click();
  assert.notEqual(await ground(), before);
  await page.locator("#theme").click();
  assert.equal(await ground(), before);
}

async function everyTabOpens(page) {
  const tabs = await page.locator("#tabs button").count();
  for (let i = tabs - 1; i >= 0; i--) {
    await page.locator("#tabs button").nth(i).click();
    assert.equal(await page.locator('#tabs button[aria-selected="true"]').count(), 1);
  }
}

const browser = await chromium.launch({ executablePath, args: FLAGS });
for (const { name, ...screen } of SCREENS) {
  const context = await browser.newContext(screen);
  const page = await context.newPage();
  const complaints = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type())
    && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("request", (request) => request.url().startsWith("file:")
    || complaints.push(`it asks for ${request.url()}`));
  await page.goto(pathToFileURL(file).href);
  await page.waitForSelector(`${planned} .peak`);
  await choosePlan(page, RECOMPUTING);
  const checks = [everySectionIsThere, thePeakIsThePlans, thePageFits,
    ...(screen.isMobile ? [fingersLookAround] : [hoveringShowsNodeAndLiveSet,
    draggingZoomsAndBothPanelsFollow]), keysMoveAndZoom, theTableSortsAndSearches,
    transfersHaveLanes, ...(screen.isMobile ? [] : [pointingAtALaneTellsWhatIsCopied]), thePageFits,
    everyTabOpens];
  for (const check of checks) {
    await check(page)
      .catch((error) => { throw new Error(`${name}, ${check.name}: ${error.message}`); });
  }
  await theThemeSwitches(page, screen.colorScheme);
  assert.deepEqual(complaints, [], name);
  await page.reload();
  await page.waitForSelector(`${planned} .peak`);
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage: true });
  await context.close();
  console.log(`${name}: ${checks.length + 1} checks passed`);
}
await browser.close();
