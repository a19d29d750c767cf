// Shows several runs of the same jobs at one time, side by side: what runs where, how many wait, what an accelerator
// costs. The data stand in the page; all text is set as text, and nothing is fetched.
"use strict";

const STEPS = 1000; // of the slider
const CELLS_MOST = 64; // of a pool; where it has more accelerators, a cell stands for several
const JOBS_NAMED = 8; // of a pool

// The value that a level has at a time; null before its first.
function levelAt(curve, at) {
  if (!curve || !curve[0].length || at < curve[0][0]) return null;
  let low = 0;
  let high = curve[0].length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (curve[0][middle] <= at) low = middle;
    else high = middle - 1;
  }
  return curve[1][low];
}

function number(value) {
  return Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(3)).toString();
}

function clock(at) {
  const seconds = Math.floor(at);
  const two = (part) => String(part).padStart(2, "0");
  const days = Math.floor(seconds / 86400);
  const time = `${two(Math.floor(seconds / 3600) % 24)}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
  return days ? `day ${days}, ${time}` : time;
}

function element(name, parent, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  parent.append(made);
  return made;
}

// Next to each other in number, far from each other in colour.
function colourOf(job) {
  return `hsl(${(job * 137.508) % 360} 60% 50%)`;
}

function drawPool(cell, policy, pool, at) {
  const levels = policy.pools[pool];
  cell.replaceChildren();
  if (!levels) return;
  const there = levelAt(levels.there, at) ?? 0;
  const held = levelAt(levels.held, at) ?? 0;
  const running = (levels.attempts ?? []).filter(([, , from, until]) => from <= at && at < until);
  const named = at <= policy.named_until;
  const perCell = Math.max(1, there / CELLS_MOST);
  const owners = named ? running.flatMap(([job, count]) => Array(count).fill(job)) : Array(Math.round(held)).fill(0);
  const cells = element("div", cell, "", "cells");
  cells.setAttribute("aria-hidden", "true");
  for (let place = 0; place < there; place += perCell) {
    const owner = owners[Math.floor(place)];
    const mark = element("span", cells, "", owner === undefined ? "free" : "");
    if (owner !== undefined) mark.style.background = owner ? colourOf(owner) : "currentColor";
  }
  element("div", cell, `${number(held)} of ${number(there)} held`);
  const price = levelAt(levels.price, at);
  if (price !== null) element("div", cell, `price ${number(price)} ${policy.unit}`.trim());
  const market = levelAt(levels.usd_per_h, at);
  if (market) element("div", cell, `${number(market)} USD/h a machine`);
  if (!named) return;
  const jobs = running.slice(0, JOBS_NAMED).map(([job, count]) => (count > 1 ? `${job} (${count})` : `${job}`));
  const more = running.length > JOBS_NAMED ? ` and ${running.length - JOBS_NAMED} more` : "";
  if (jobs.length) element("div", cell, `jobs ${jobs.join(", ")}${more}`);
}

function startSlider(box) {
  const data = JSON.parse(box.querySelector("script").textContent);
  const pools = [...new Set(data.policies.flatMap((policy) => Object.keys(policy.pools)))];
  const changes = [...new Set(data.policies.flatMap((policy) => Object.values(policy.pools)).flatMap((pool) =>
    (pool.attempts ?? []).flatMap(([, , from, until]) => [from, until])))].sort((a, b) => a - b);
  const controls = element("p", box, "", "controls");
  const earlier = element("button", controls, "◀ earlier change");
  const label = element("label", controls, "time ");
  const slider = element("input", label);
  slider.type = "range";
  slider.max = String(STEPS);
  const later = element("button", controls, "later change ▶");
  const shown = element("output", controls);
  const table = element("table", box);
  const head = element("tr", table);
  element("th", head);
  for (const policy of data.policies) element("th", head, policy.name);
  const rowOf = (name) => {
    const row = element("tr", table);
    element("th", row, name).scope = "row";
    return data.policies.map(() => element("td", row, "", "left"));
  };
  const waiting = rowOf("jobs that wait");
  const cells = pools.map(rowOf);
  let at = 0;
  const show = (time, isByHand) => {
    at = Math.min(Math.max(time, 0), data.until);
    if (!isByHand) slider.value = String(Math.round((at / data.until) * STEPS));
    shown.textContent = clock(at);
    slider.setAttribute("aria-valuetext", clock(at));
    data.policies.forEach((policy, column) => {
      const isOver = at >= policy.until;
      const count = levelAt(policy.waiting, at);
      waiting[column].textContent = isOver ? "over" : number(count ?? 0);
      pools.forEach((pool, row) => drawPool(cells[row][column], policy, pool, at));
    });
  };
  slider.addEventListener("input", () => show((Number(slider.value) / STEPS) * data.until, true));
  earlier.addEventListener("click", () => show(changes.findLast((change) => change < at) ?? 0));
  later.addEventListener("click", () => show(changes.find((change) => change > at) ?? data.until));
  // Where most jobs wait policies differ most.
  const [instants, counts] = data.policies[0].waiting;
  show(instants[counts.indexOf(Math.max(...counts))] ?? 0);
}

for (const box of document.querySelectorAll(".time-slider")) startSlider(box);
