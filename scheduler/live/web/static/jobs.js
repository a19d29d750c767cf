// All jobs, those that ended too: filtered and sorted by the server, a page at a time.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { get } from "./server.js";
import { JobLink, Loading, State, Table, Trouble, useLoaded } from "./parts.js";
import { count, figure, foreseen, instant, isOver, length, money, percent, reason, secondsSince } from "./words.js";

const STATES = ["PENDING", "HELD", "STARTING", "RUNNING", "PREEMPTING", "UNREACHABLE", "CANCELLING", "SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT"];
const COLUMNS = [
  { title: "Job", sort: "id" },
  { title: "User", sort: "user" },
  { title: "Project", sort: "project" },
  { title: "State", sort: "state" },
  { title: "Why" },
  { title: "On" },
  { title: "Acc", sort: "accelerators", right: true },
  { title: "Progress", right: true },
  { title: "Spent", right: true },
  { title: "Submitted", sort: "submitted", right: true },
];

const wished = () => Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] || ""));

function progress(job) {
  if (job.steps_total) return percent(Math.min(1, job.steps / job.steps_total));
  return job.steps ? count(job.steps) : "–";
}

function when(job) {
  const start = foreseen(job.forecast, "start");
  return start && !isOver(job.state) ? `${reason(job)}; starts ${start}` : reason(job);
}

/** "3 running, 9 pending": the jobs of a sweep. */
const inStates = (states) => Object.entries(states).map(([state, many]) => `${count(many)} ${state.toLowerCase()}`).join(", ");
const isFolded = (job) => Object.keys(job.sweep_states).length > 0;

const cells = (unfold) => (job) => [
  isFolded(job) ? html`<button class="plain link" onClick=${() => unfold(job.sweep)}><span class="number">${job.sweep}[*]</span> <span class="name">${job.name}</span></button>` : html`<${JobLink} id=${job.id} name=${job.name} />`,
  job.user,
  job.project,
  isFolded(job) ? inStates(job.sweep_states) : html`<${State} state=${job.state} />`,
  isFolded(job) ? "" : html`<span title=${job.detail}>${when(job)}</span>`,
  job.accelerator || "",
  count(job.accelerators),
  progress(job),
  job.usd ? money(job.usd) : "–",
  html`<time title=${length(secondsSince(job.submitted_at)) + " ago"}>${instant(job.submitted_at)}</time>`,
];

export function JobsPage() {
  const [wish, setWish] = useState({ sort: "-id", ...wished() });
  const [cursors, setCursors] = useState([""]);
  const query = new URLSearchParams(Object.entries({ ...wish, sweeps: wish.sweep ? "" : "folded", limit: "50", cursor: cursors[cursors.length - 1] }).filter(([, value]) => value));
  const { data, problem } = useLoaded((signal) => get(`/jobs?${query}`, signal), String(query), 5);
  useEffect(() => {
    const kept = Object.entries(wish).filter(([name, value]) => value && !(name === "sort" && value === "-id"));
    history.replaceState(null, "", `#/jobs${kept.length ? `?${new URLSearchParams(kept)}` : ""}`);
  }, [wish]);
  const change = (name) => (event) => {
    setCursors([""]);
    setWish({ ...wish, [name]: event.target.type === "checkbox" ? (event.target.checked ? "true" : "") : event.target.value.trim() });
  };
  return html`<h1>Jobs</h1>
    <form class="filters" role="search" aria-label="Filter jobs" onSubmit=${(event) => event.preventDefault()}>
      <label>Name <input type="search" value=${wish.name || ""} onInput=${change("name")} /></label>
      <label>State <select value=${wish.state || ""} onChange=${change("state")}><option value="">any</option>${STATES.map((state) => html`<option value=${state} selected=${wish.state === state}>${state.toLowerCase()}</option>`)}</select></label>
      <label>User <input type="search" size="10" value=${wish.user || ""} onChange=${change("user")} /></label>
      <label>Project <input type="search" size="10" value=${wish.project || ""} onChange=${change("project")} /></label>
      <label>Sweep <input type="search" size="6" inputmode="numeric" value=${wish.sweep || ""} onChange=${change("sweep")} /></label>
      <label class="check"><input type="checkbox" checked=${wish.active === "true"} onChange=${change("active")} /> not over</label>
    </form>
    <${Trouble} problem=${problem} />
    ${data === null ? html`<${Loading} />` : html`<${Table} cards caption="Jobs" columns=${COLUMNS} rows=${data.items.map(cells((sweep) => { setCursors([""]); setWish({ ...wish, sweep: String(sweep) }); }))} sort=${wish.sort} onSort=${(sort) => { setCursors([""]); setWish({ ...wish, sort }); }} />
      ${data.items.length ? null : html`<p class="quiet">No job is like that.</p>`}
      <p class="pages"><button disabled=${cursors.length < 2} onClick=${() => setCursors(cursors.slice(0, -1))}>Back</button>
        <span class="quiet">page ${figure(cursors.length)}</span>
        <button disabled=${!data.next} onClick=${() => setCursors([...cursors, data.next])}>On</button></p>`}`;
}
