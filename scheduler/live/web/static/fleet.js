// The first view: who holds which accelerator, what places cost, who is next, what to look at.

import { Component, html } from "./vendor/preact-htm.js";
import { Chart, JobLink, Loading, useOverview } from "./parts.js";
import { count, exactly, figure, foreseen, hue, instant, length, money, percent, reason, secondsSince } from "./words.js";

// Fleets of up to so many accelerators have room for large cells.
const LARGE_UP_TO = 160;

/** One machine; drawn again only if something on it changed. */
class Machine extends Component {
  shouldComponentUpdate(next) {
    return next.signature !== this.props.signature;
  }

  render({ machine, names }) {
    const held = [...new Set(machine.cells.filter(Boolean))];
    const idle = machine.cells.filter((job) => !job).length;
    const jobs = held.map((job) => `job ${job}${names[job] ? ` ${names[job]}` : ""}`).join(", ");
    const told = [machine.state === "up" ? "" : machine.state, jobs, idle ? `${idle} idle` : "", machine.detail].filter(Boolean).join("; ");
    // All parts of a machine with several types bear its name.
    const name = machine.machine ? `${machine.machine} (${machine.accelerator})` : machine.node_id;
    return html`<a class="machine ${machine.state}" href="#/machines/${encodeURIComponent(machine.node_id)}" aria-label=${`${name}: ${told}`} title=${`${name}: ${told}`}>
      ${machine.cells.map((job) => html`<i class=${job ? "cell" : "cell idle"} data-job=${job || undefined} style=${job ? { "--hue": hue(job) } : undefined}></i>`)}</a>`;
  }
}

function openJob(event) {
  const job = event.target.dataset && event.target.dataset.job;
  if (!job) return;
  event.preventDefault();
  location.hash = `#/jobs/${job}`;
}

function PriceLine({ pool, history }) {
  const points = history.filter((point) => point.prices[pool.pool] !== undefined);
  if (points.length < 2) return html`<p class="quiet line">the line of its price begins with the next solves</p>`;
  const data = [points.map((point) => point.at), points.map((point) => point.prices[pool.pool])];
  const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  const low = Math.min(...data[1]), high = Math.max(...data[1]);
  return html`<${Chart} bare data=${data} height=${36} series=${[{ stroke: accent, fill: accent + "22" }]}
    label=${`Price of ${pool.pool} since ${instant(data[0][0])}: between ${figure(low)} and ${figure(high)}, now ${figure(pool.price)}`} />`;
}

function Pool({ pool, machines, names, history }) {
  return html`<section class="pool" aria-label=${`Pool ${pool.pool}`}>
    <h3>${pool.accelerator}<span class="quiet"> ${pool.pool}</span></h3>
    <div class="machines" onClick=${openJob}>${machines.map((machine) => html`<${Machine} key=${machine.node_id} machine=${machine} names=${names}
      signature=${JSON.stringify([machine, machine.cells.map((job) => names[job])])} />`)}
      ${machines.length ? null : html`<p class="quiet">no machine is here</p>`}</div>
    <dl class="facts"><div><dt>held</dt><dd>${count(pool.capacity - pool.free)} of ${count(pool.capacity)}</dd></div>
      <div><dt>price</dt><dd title=${pool.unit}>${figure(pool.price)}</dd></div>
      ${pool.market_usd_per_h ? html`<div><dt>machine</dt><dd>${money(pool.market_usd_per_h)}/h</dd></div>` : null}
      ${pool.quota_machines ? html`<div><dt>rented</dt><dd>${pool.rented_machines} of ${pool.quota_machines}</dd></div>` : null}
      ${pool.marginal_job ? html`<div><dt>first to go</dt><dd><a href="#/jobs/${pool.marginal_job}">${pool.marginal_job}</a></dd></div>` : null}</dl>
    <${PriceLine} pool=${pool} history=${history} />
  </section>`;
}

function startOf(job) {
  const told = foreseen(job.forecast, "start");
  return told ? html`<span class="expected"> · starts ${told}</span>` : null;
}

function Queue({ overview }) {
  const { queue, waiting } = overview;
  if (!queue.length) return html`<p class="quiet">Nobody waits.</p>`;
  // A sweep is one line: where its first job stands.
  const alike = (job) => queue.filter((each) => each.sweep === job.sweep);
  const shown = queue.filter((job) => !job.sweep || alike(job)[0] === job);
  return html`<ol class="queue">${shown.map((job) => html`<li>
      <div class="head"><${JobLink} id=${job.id} name=${job.name} /><span class="quiet">${job.user} · ${count(job.accelerators)} acc · waits ${length(secondsSince(job.submitted_at))}</span></div>
      <div class="why" title=${job.detail}>${reason(job)}${startOf(job)}</div>
      ${job.sweep && alike(job).length > 1 ? html`<div class="quiet">and <a href="#/jobs?sweep=${job.sweep}">${count(alike(job).length - 1)} more of its sweep</a></div>` : null}</li>`)}</ol>
    ${waiting > queue.length ? html`<p class="quiet">and <a href="#/jobs?state=PENDING&sort=queue">${count(waiting - queue.length)} more</a></p>` : null}`;
}

function Money({ told }) {
  if (!told || !(told.spent_usd || told.on_demand_usd || told.usd_per_h)) return null;
  const saved = told.on_demand_usd > 0 ? 1 - told.spent_usd / told.on_demand_usd : 0;
  return html`<div class="tile"><b>${money(told.spent_usd)}</b><span>this month, ${money(told.usd_per_h)}/h now</span>
    ${Math.abs(saved) < 0.005 ? null : html`<span class="quiet">${percent(Math.abs(saved))} ${saved > 0 ? "less" : "more"} than all on demand (${money(told.on_demand_usd)})</span>`}</div>`;
}

function Tiles({ overview }) {
  const { counts, types, certificate } = overview;
  const aside = (type) => overview.machines.reduce((sum, machine) => sum + (machine.state !== "up" && machine.accelerator === type.accelerator ? machine.cells.length : 0), 0);
  const held = counts.HELD || 0, waiting = counts.PENDING || 0;
  const running = Object.values(counts).reduce((sum, many) => sum + many, 0) - held - waiting;
  return html`<div class="tiles">
    <div class="tile"><b>${count(running)}</b><span>running</span></div>
    <div class="tile"><b>${count(waiting)}</b><span>waiting${held ? `, ${count(held)} held` : ""}</span></div>
    ${types.map((type) => html`<div class="tile"><b>${count(type.free)}</b><span>of ${count(type.capacity)} ${type.accelerator} free</span>
      ${aside(type) ? html`<span class="quiet">${count(aside(type))} take no jobs</span>` : null}</div>`)}
    <${Money} told=${overview.money} />
    ${certificate ? html`<div class="tile"><b>${percent(certificate.gap)}</b><span>certified gap to the best answer</span><span class="quiet">prices of ${instant(certificate.solved_at)}</span></div>` : null}</div>`;
}

const subject = (alert) => {
  const [kind, ...name] = alert.subject.split(" ");
  if (kind === "machine") return `#/machines/${encodeURIComponent(name.join(" "))}`;
  return kind === "job" ? `#/jobs/${name[0]}` : kind === "policy" ? "#/policy" : "";
};

function Alerts({ alerts }) {
  if (!alerts.length) return null;
  return html`<ul class="alerts" aria-label="Alerts">${alerts.map((alert) => html`<li class=${alert.level}>
    ${subject(alert) ? html`<a href=${subject(alert)}>${alert.text}</a>` : alert.text}</li>`)}</ul>`;
}

export function FleetPage() {
  const overview = useOverview();
  if (!overview) return html`<h1 class="hidden">Fleet</h1><${Loading} />`;
  const byPool = new Map(overview.pools.map((pool) => [pool.pool, []]));
  for (const machine of overview.machines) (byPool.get(machine.pool) || []).push(machine);
  const cells = overview.machines.reduce((sum, machine) => sum + machine.cells.length, 0);
  return html`<h1 class="hidden">Fleet</h1>
    <${Tiles} overview=${overview} /><${Alerts} alerts=${overview.alerts} />
    <div class="columns"><section aria-labelledby="fleet"><h2 id="fleet">Fleet</h2>
      ${overview.pools.length ? html`<div class=${cells <= LARGE_UP_TO ? "pools large" : "pools"}>${overview.pools.map((pool) => html`<${Pool} key=${pool.pool} pool=${pool} machines=${byPool.get(pool.pool)} names=${overview.names} history=${overview.history} />`)}</div>`
        : html`<p class="quiet">No pool is declared and no machine has joined. Start one with <code>walras agent</code>.</p>`}
      <p class="legend quiet"><i class="cell" style=${{ "--hue": 210 }}></i> a job's <i class="cell idle"></i> idle <span class="machine leaving"><i class="cell" style=${{ "--hue": 210 }}></i></span> drained or leaving <span class="machine unreachable"><i class="cell" style=${{ "--hue": 210 }}></i></span> silent</p></section>
    <section aria-labelledby="next"><h2 id="next">Next</h2><${Queue} overview=${overview} /></section></div>
    <p class="quiet foot">as of <time title=${exactly(overview.as_of)}>${instant(overview.as_of)}</time></p>`;
}
