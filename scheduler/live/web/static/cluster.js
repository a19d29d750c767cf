// Machines, money, the audit.

import { html, useState } from "./vendor/preact-htm.js";
import { call, get } from "./server.js";
import { Devices, MachineHistory, inShort } from "./machine.js";
import { Action, JobLink, Loading, State, Table, Trouble, save, useLoaded, useOverview } from "./parts.js";
import { count, exactly, figure, instant, length, money, percent } from "./words.js";

// All parts of a machine with accelerators of several types go by its name.
const nameOf = (machine) => machine.machine || machine.node_id;
const isHere = (machine) => !["lost", "released"].includes(machine.state);

function DrainActions({ machine, again }) {
  const path = `/nodes/${encodeURIComponent(nameOf(machine))}`;
  if (!isHere(machine)) return null;
  if (["draining", "drained", "leaving", "quarantined"].includes(machine.state)) return html`<${Action} title="Use again" act=${() => call("POST", `${path}/resume`)} onDone=${again} />`;
  return html`<${Action} title="Drain" ask=${`${nameOf(machine)} gets no more jobs. Those that can save their work move at once; the others run to their ends.`} act=${() => call("POST", `${path}/drain`, {})} onDone=${again} />`;
}

export function MachinesPage({ can, rest }) {
  const { data, problem, again } = useLoaded((signal) => get("/nodes", signal), "machines", 4);
  const overview = useOverview();
  const names = overview ? overview.names : {};
  const [all, setAll] = useState(false);
  if (!data) return html`<h1>Machines</h1>${problem ? html`<${Trouble} problem=${problem} />` : html`<${Loading} />`}`;
  const wanted = rest[0];
  const shown = data.filter((machine) => (wanted ? [machine.node_id, machine.machine].includes(wanted) : all || isHere(machine)));
  const columns = [{ title: "Machine" }, { title: "Pool" }, { title: "State" }, { title: "Free", right: true }, { title: "Jobs" }, { title: "Devices" }, { title: "Heard", right: true }, ...(can("admin") ? [{ title: "" }] : [])];
  const rows = shown.map((machine) => [
    html`<a href="#/machines/${encodeURIComponent(nameOf(machine))}">${nameOf(machine)}</a>`,
    html`${machine.accelerator} <span class="quiet">${machine.pool}${machine.emulated ? ", emulated" : ""}</span>`,
    html`<${State} state=${machine.state} />${machine.detail ? html` <span class="quiet">${machine.detail}</span>` : null}`,
    `${count(machine.free)} of ${count(machine.accelerators)}`,
    html`<span class="links">${machine.jobs.map((job) => html`<${JobLink} id=${job} name=${names[job]} /> `)}</span>`,
    inShort(machine.devices) || "–",
    machine.last_heard_s === null ? "–" : `${length(machine.last_heard_s)} ago`,
    ...(can("admin") ? [html`<${DrainActions} machine=${machine} again=${again} />`] : []),
  ]);
  return html`<h1>Machines${wanted ? html` <span class="name">${wanted}</span>` : null}</h1><${Trouble} problem=${problem} />
    ${wanted ? html`<p><a href="#/machines">All machines</a></p>` : html`<label class="check"><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> those that are gone, too</label>`}
    <${Table} caption="Machines" columns=${columns} rows=${rows} />${rows.length ? null : html`<p class="quiet">No machine is here.</p>`}
    ${wanted ? html`<${Devices} devices=${shown.flatMap((machine) => machine.devices)} /><${MachineHistory} name=${wanted} />` : null}`;
}

/** A table as a file that spreadsheets open; cells that begin like a formula are made text. */
function csv(report) {
  const cell = (value) => {
    const text = /^[=+\-@\t\r]/.test(String(value)) && typeof value !== "number" ? `'${value}` : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const head = [report.by, "accelerator_s", "usd", "idle_usd", "on_demand_usd"];
  const rows = report.items.map((row) => [row.key, row.accelerator_s, row.usd, row.idle_usd, row.on_demand_usd]);
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

const BUDGET_UNITS = { usd: money, accelerator_h: (value) => `${figure(value)} accelerator-hours`, fair_share_h: (value) => `${figure(value)} fair-share hours` };

/** Limits that one's jobs pay into. */
function Budgets() {
  const { data, problem } = useLoaded((signal) => get("/budgets", signal), "budgets", 15);
  const columns = [{ title: "Whose" }, { title: "Used", right: true }, { title: "Limit", right: true }, { title: "Left", right: true }, { title: "An hour now", right: true }, { title: "Filled again" }];
  const rows = (data || []).map((budget) => {
    const told = BUDGET_UNITS[budget.unit] || figure;
    return [
      html`${budget.whose || "the cluster"}${budget.closed ? html` <span class="quiet">no job of it may start</span>` : null}`,
      html`${told(budget.used)} <meter min="0" max=${budget.limit || 1} high=${0.9 * budget.limit} value=${Math.min(budget.used, budget.limit)} aria-label=${`used of the limit of ${budget.whose || "the cluster"}`}></meter>`,
      html`${told(budget.limit)}${budget.credited ? html` <span class="quiet">of it ${told(budget.credited)} credited</span>` : null}`,
      told(Math.max(0, budget.limit - budget.used)),
      budget.per_h ? told(budget.per_h) : "–",
      budget.refills ? html`<time title=${exactly(budget.refills)}>${instant(budget.refills)}</time>` : "never",
    ];
  });
  return html`<section aria-labelledby="budgets"><h2 id="budgets">Budgets</h2><${Trouble} problem=${problem} />
    ${data ? (rows.length ? html`<${Table} caption="Budgets" columns=${columns} rows=${rows} />` : html`<p class="quiet">No budget limits your jobs.</p>`) : null}</section>`;
}

export function MoneyPage() {
  const [by, setBy] = useState("project");
  const [month, setMonth] = useState("");
  const { data, problem } = useLoaded((signal) => get(`/money?by=${by}${month ? `&month=${month}` : ""}`, signal), by + month, 15);
  const columns = [{ title: by }, { title: "Accelerator-hours", right: true }, { title: "Cost", right: true }, { title: "Idle", right: true }, { title: "All on demand", right: true }, { title: "Saved", right: true }];
  const cells = (row) => [row.key || "–", figure(row.accelerator_s / 3600), money(row.usd), row.idle_usd ? money(row.idle_usd) : "–", money(row.on_demand_usd), row.on_demand_usd ? percent(1 - (row.usd + row.idle_usd) / row.on_demand_usd) : "–"];
  return html`<h1>Money</h1>
    <form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <label>By <select onChange=${(event) => setBy(event.target.value)}>${["project", "user", "job", "pool", "month"].map((each) => html`<option selected=${each === by}>${each}</option>`)}</select></label>
      <label>Month <input type="month" value=${month} onChange=${(event) => setMonth(event.target.value)} /></label>
      <button type="button" disabled=${!data} onClick=${() => save(new Blob([csv(data)], { type: "text/csv" }), `walras-money-by-${by}${month ? `-${month}` : ""}.csv`)}>Save as CSV</button></form>
    <${Trouble} problem=${problem} />
    ${data ? html`<div class="tiles"><div class="tile"><b>${money(data.total_usd)}</b><span>spent</span></div><div class="tile"><b>${money(data.idle_usd)}</b><span>of it for idle machines</span></div><div class="tile"><b>${money(data.on_demand_usd)}</b><span>all on demand</span></div></div>
      <${Table} caption=${`Money by ${by}`} columns=${columns} rows=${data.items.map(cells)} />${data.rest ? html`<p class="quiet">and ${count(data.rest_of)} more for ${money(data.rest.usd)}</p>` : null}` : html`<${Loading} />`}
    <${Budgets} />`;
}

export function AuditPage() {
  const [user, setUser] = useState("");
  const { data, problem } = useLoaded((signal) => get(`/audit?limit=200${user ? `&user=${encodeURIComponent(user)}` : ""}`, signal), user, 15);
  const columns = [{ title: "When" }, { title: "Who" }, { title: "From" }, { title: "What" }, { title: "Change" }];
  const short = (value) => (value === null ? "nothing" : JSON.stringify(value));
  const rows = (data || []).map((row) => [html`<time title=${exactly(row.at)}>${instant(row.at)}</time>`, html`${row.user} <span class="quiet">${row.role}</span>`, row.address, html`${row.subject} <code class="quiet">${row.action}</code>`,
    html`<details><summary>${row.before === null ? "new" : "changed"}</summary><pre class="spec">${short(row.before)}${"\n→ "}${short(row.after)}</pre></details>`]);
  return html`<h1>Audit</h1><form class="filters" onSubmit=${(event) => event.preventDefault()}><label>User <input type="search" onChange=${(event) => setUser(event.target.value.trim())} /></label></form>
    <${Trouble} problem=${problem} />${data ? html`<${Table} caption="Writes" columns=${columns} rows=${rows} />` : html`<${Loading} />`}`;
}
