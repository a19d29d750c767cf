// What would be different if something else were so, and the ways in which a job could run.

import { html, useState } from "./vendor/preact-htm.js";
import { call, get } from "./server.js";
import { JobLink, Table, Trouble, useLoaded, useOverview } from "./parts.js";
import { count, foreseen, instant, length, money } from "./words.js";

const SAME_S = 1;
const SAME_USD = 0.005;

/** [p10, p50, p90] seconds -> "12 min sooner (8 min to 20 min)"; both signs where it is not sure. */
export function later([low, middle, high]) {
  if (Math.max(Math.abs(low), Math.abs(high)) < SAME_S) return "same";
  const signed = (seconds) => `${length(Math.abs(seconds))} ${seconds < 0 ? "sooner" : "later"}`;
  if (low < -SAME_S && high > SAME_S) return `not sure (${signed(low)} to ${signed(high)})`;
  const [near, far] = [Math.abs(low), Math.abs(high)].sort((a, b) => a - b);
  return `${signed(middle)} (${length(near)} to ${length(far)})`;
}

function dearer([low, middle, high]) {
  if ([low, middle, high].every((each) => Math.abs(each) < SAME_USD)) return "same";
  const signed = (usd) => `${usd < 0 ? "−" : "+"}${money(Math.abs(usd))}`;
  return `${signed(middle)} (${signed(low)} to ${signed(high)})`;
}

/** Four in five futures of each row as a bar about no change: to the left of the line sooner, to the right later. */
function spreads(rows) {
  const most = Math.max(SAME_S, ...rows.flatMap((row) => row.map(Math.abs)));
  const at = (seconds) => 50 + (50 * seconds) / most;
  return rows.map(([low, middle, high]) => html`<span class="spread" role="img" aria-label=${later([low, middle, high])}>
    <b class=${high < -SAME_S ? "sooner" : low > SAME_S ? "later" : ""} style=${{ left: `${at(low)}%`, width: `${Math.max(1, at(high) - at(low))}%` }}></b><i style=${{ left: `${at(middle)}%` }}></i></span>`);
}

const span = (forecast, which) => foreseen(forecast, which) || "not known";

/** The answer of `POST /whatif`. */
export function Difference({ told }) {
  const columns = [{ title: "Project" }, { title: "Jobs", right: true }, { title: "Start" }, { title: "End" }, { title: "" }, { title: "USD" }];
  const row = (each) => [each.project || "others", count(each.jobs), each.waiting_s ? later(each.waiting_s) : "–", later(each.completion_s)];
  const shown = [told.total, ...(told.projects.length > 1 ? told.projects : [])];
  const bars = spreads(shown.map((each) => each.completion_s));
  const rows = shown.map((each, at) => [...row(each), bars[at], dearer(each.usd)]);
  const jobs = told.jobs.map((each) => [html`<${JobLink} id=${each.id} name=${each.name} />`, each.project, each.start_s ? later(each.start_s) : "–", later(each.end_s)]);
  return html`<section class="outcome" aria-labelledby="difference" role="status"><h2 id="difference">What would be different</h2>
    <p>If ${told.changes.join("; ") || "all stays as it is"}: ${count(told.draws)} futures, each with and without; four in five lie between.</p>
    <${Table} caption="Differences by project" columns=${columns} rows=${rows} />
    ${jobs.length ? html`<h3>Jobs that change most</h3><${Table} caption="Jobs that change most" columns=${[{ title: "Job" }, { title: "Project" }, { title: "Start" }, { title: "End" }]} rows=${jobs} />` : null}
    ${told.submitted.map((way) => html`<p>The job starts ${span(way.forecast, "start")}, ends ${span(way.forecast, "end")}, and delays ${delays(way)}.</p>`)}</section>`;
}

const delays = (way) => (way.delayed_jobs ? `${count(way.delayed_jobs)} jobs by ${length(way.delay_s)} in all` : "nobody");

const promised = (way) => (way.promised_by ? `by ${instant(way.promised_by)}` : `nothing: ${way.no_promise}`);

/** The answer of `POST /jobs:quote`; `onTake(way)` takes one of its ways. */
export function Menu({ told, onTake }) {
  const columns = [{ title: "Way" }, { title: "Starts" }, { title: "Ends" }, { title: "Promised" }, { title: "Cost", right: true }, { title: "Delays" }, { title: "" }];
  const rows = told.ways.map((way) => [
    way.way || "as it asks", span(way.forecast, "start"), span(way.forecast, "end"), promised(way), way.usd ? `${money(way.usd[0])} to ${money(way.usd[2])}` : "–", way.usd ? delays(way) : "–",
    way.forecast && way.forecast.start && way.promised_by ? html`<button type="button" onClick=${() => onTake(way)}>Take</button>` : null]);
  return html`<section class="outcome" aria-labelledby="menu" role="status"><h2 id="menu">Ways to run it</h2>
    <p class="quiet">${told.draws ? `${count(told.draws)} futures of each; four in five lie between, and a promised end is kept in 19 of 20. Taking one makes its promised end the deadline of the job.` : "Starts as of the jobs that wait."}</p>
    <${Table} caption="Ways to run it" columns=${columns} rows=${rows} /></section>`;
}

/** The job as a way of its menu has it: what was told, and the promised end as its deadline. */
export function taken(spec, told, way) {
  const [number, accelerator] = way.way.split(" x ");
  const whole = (seconds) => Math.round(seconds);
  const end = whole(way.promised_by);
  const quoted = { way: way.way || "as asked", start_by: whole(way.forecast.start[2]), end_by: end, usd_most: Math.max(0, way.usd[2]), quoted_at: told.as_of };
  const resources = accelerator ? { resources: { ...(spec.resources || {}), accelerators: `${accelerator}:${number}` } } : {};
  const stays = spec.deadline && !(Date.parse(spec.deadline) > 1000 * end);
  return { ...spec, ...resources, quoted, deadline: stays ? spec.deadline : new Date(1000 * end).toISOString() };
}

export function WhatIfPage() {
  const overview = useOverview();
  const { data: policies } = useLoaded((signal) => get("/policy/versions", signal), "versions");
  const [asked, setAsked] = useState({ remove: "", project: "", version: "" });
  const [more, setMore] = useState({});
  const [told, setTold] = useState(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const types = overview ? [...new Set(overview.pools.map((pool) => pool.accelerator))] : [];
  const held = {};
  for (const machine of overview ? overview.machines : []) held[machine.accelerator] = (held[machine.accelerator] || 0) + machine.cells.length;
  const places = overview ? [...types, ...overview.pools.map((pool) => pool.pool), ...overview.machines.map((machine) => machine.node_id)] : [];
  const change = (name) => (event) => setAsked({ ...asked, [name]: event.target.value });
  const ask = async (event) => {
    event.preventDefault();
    setBusy(true);
    setTold(null);
    try {
      const body = {};
      const added = Object.entries(more).filter(([, many]) => many > 0);
      if (added.length) body.add = added.map(([accelerator, accelerators]) => ({ accelerator, accelerators }));
      if (asked.remove.trim()) body.remove = [asked.remove.trim()];
      if (asked.project.trim()) body.no_limit = [asked.project.trim()];
      const version = (policies || []).find((each) => String(each.version) === asked.version);
      if (version) body.policy = { policy: { name: version.name, parameters: version.parameters }, rules: version.rules };
      setTold(await call("POST", "/whatif", body));
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
  };
  return html`<h1>What if</h1>
    <p class="quiet">Futures of the cluster as it is now, with and without the change, under the same luck. Nothing is changed.</p>
    <form class="fields" onSubmit=${ask}>
      ${types.map((type) => html`<label for=${`more-${type}`}>${type}, more: ${count(more[type] || 0)} <input id=${`more-${type}`} type="range" min="0" max=${Math.max(8, 2 * (held[type] || 0))} value=${more[type] || 0} onInput=${(event) => setMore({ ...more, [type]: Number(event.target.value) })} /></label>`)}
      <label for="remove">Without this machine, pool or type <input id="remove" list="places" value=${asked.remove} onInput=${change("remove")} /></label>
      <datalist id="places">${places.map((each) => html`<option value=${each}></option>`)}</datalist>
      <label for="free">No limit for project <input id="free" value=${asked.project} onInput=${change("project")} /></label>
      <label for="other">Under the policy <select id="other" onChange=${change("version")}><option value="">in force</option>${(policies || []).slice(1).map((each) => html`<option value=${each.version} selected=${String(each.version) === asked.version}>version ${each.version}: ${each.name}, ${instant(each.changed_at)}</option>`)}</select></label>
      <p class="actions"><button class="first" disabled=${busy}>Compare</button></p></form>
    ${busy ? html`<p class="quiet" role="status">The server rolls the futures forward …</p>` : null}
    <${Trouble} problem=${problem} />
    ${told ? html`<${Difference} told=${told} />` : null}`;
}
