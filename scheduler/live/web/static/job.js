// One job: what became of it, what it does now, why it waits, what it cost, and what can be done.

import { html } from "./vendor/preact-htm.js";
import { call, get } from "./server.js";
import { Action, Loading, State, Table, Trouble, useLoaded } from "./parts.js";
import { Files } from "./files.js";
import { Log } from "./log.js";
import { count, exactly, figure, foreseen, hue, instant, isOver, length, money, percent, reason, secondsSince } from "./words.js";

const time = (text) => (text ? Date.parse(text) / 1000 : null);

/** Stretches of waiting, starting and running, as parts of the whole life. */
function stretches(job) {
  const begin = time(job.submitted_at);
  const end = time(job.ended_at) || Date.now() / 1000;
  const found = [];
  let last = begin;
  const add = (kind, since, until, text, attempt) => until > since && found.push({ kind, length: until - since, text, attempt });
  for (const attempt of job.attempt_list) {
    const leased = time(attempt.leased_at), started = time(attempt.started_at), over = time(attempt.ended_at) || end;
    add("waits", last, leased, "waits");
    add("starts", leased, started || over, `attempt ${attempt.attempt} starts on ${attempt.accelerator}`, attempt);
    if (started) add("runs", started, over, `attempt ${attempt.attempt} runs on ${attempt.accelerator}`, attempt);
    last = over;
  }
  add("waits", last, end, isOver(job.state) ? "is stopped" : "waits");
  return { found, begin, end };
}

function Timeline({ job }) {
  const { found, begin, end } = stretches(job);
  const told = found.map((each) => `${each.text} for ${length(each.length)}`).join(", then ");
  return html`<div class="timeline" role="img" aria-label=${`Since ${instant(begin)}: ${told || "nothing yet"}`}>
      ${found.map((each) => html`<i class=${each.kind} title=${`${each.text}: ${length(each.length)}`} style=${{ "flex-grow": String(Math.max(each.length, (end - begin) / 400)), "--hue": hue(job.id) }}></i>`)}</div>
    <p class="ends quiet"><span>${instant(begin)}</span><span>${job.ended_at ? instant(end) : "now"}</span></p>`;
}

function Progress({ job }) {
  const part = job.steps_total ? Math.min(1, job.steps / job.steps_total) : null;
  const left = part !== null && job.steps_per_s ? (job.steps_total - job.steps) / job.steps_per_s : null;
  const values = Object.entries(job.last_values || {});
  const end = foreseen(job.forecast, "end");
  return html`<section aria-labelledby="progress"><h2 id="progress">Progress</h2>
    ${part === null ? null : html`<progress value=${part} aria-label="Steps done">${percent(part)}</progress>`}
    <p>${count(job.steps)}${job.steps_total ? ` of ${count(job.steps_total)}` : ""} steps${job.steps_per_s ? `, ${figure(job.steps_per_s)} a second` : ""}${left && !isOver(job.state) ? `, ${length(left)} left at this speed` : ""}${end ? `; ends ${end}` : ""}</p>
    ${values.length ? html`<dl class="facts">${values.map(([name, value]) => html`<div><dt>${name}</dt><dd>${job.first_values[name] === undefined ? "" : html`<span class="quiet">${figure(job.first_values[name])} → </span>`}${figure(value)}</dd></div>`)}</dl>` : null}
    ${job.target ? html`<p>${job.target.detail}</p>` : null}</section>`;
}

function Why({ explained, job }) {
  if (!explained || !(explained.why || explained.reasons.length || explained.conditions.length)) return null;
  const title = isOver(job.state) ? "How it ended" : explained.reasons.length ? "Why it does not run" : "To note";
  return html`<section aria-labelledby="why"><h2 id="why">${title}</h2>
    ${explained.why ? html`<p class="why">${explained.why[0].toUpperCase()}${explained.why.slice(1)}.</p>` : null}
    <ul class="reasons">${explained.reasons.map((each) => html`<li><b>${reason({ reason: each.reason })}</b> <code class="quiet">${each.reason}</code>
        ${each.detail ? html`<div>${each.detail}</div>` : null}${each.fix ? html`<div class="fix">To change this: ${each.fix}</div>` : null}</li>`)}
      ${explained.conditions.map((each) => html`<li class="warning"><b>${each.type.replaceAll("_", " ")}</b><div>${each.detail}</div></li>`)}</ul></section>`;
}

function Speeds({ speeds }) {
  if (!speeds || !speeds.length) return null;
  const most = Math.max(...speeds.map((each) => each.high || each.steps_per_s));
  const bar = (each) => html`<span class="bar ${each.source}"><i style=${{ width: `${(100 * each.steps_per_s) / most}%` }}></i>${each.low !== null && each.high !== null
    ? html`<b style=${{ left: `${(100 * each.low) / most}%`, width: `${(100 * (each.high - each.low)) / most}%` }}></b>` : null}</span>`;
  const span = (each) => (each.low !== null && each.high !== null ? `${figure(each.low)} to ${figure(each.high)}` : "");
  const spans = speeds.some(span);
  const rows = speeds.map((each) => [html`${each.accelerator} × ${each.accelerators} <span class="quiet">${each.pool}</span>`, bar(each), figure(each.steps_per_s), ...(spans ? [span(each)] : []), each.source]);
  return html`<section aria-labelledby="speeds"><h2 id="speeds">Speed by place</h2>
    <${Table} caption="Speed by place" columns=${[{ title: "Place" }, { title: "" }, { title: "Steps/s", right: true }, ...(spans ? [{ title: "80 % interval", right: true }] : []), { title: "Known by" }]} rows=${rows} /></section>`;
}

function Attempts({ attempts }) {
  if (!attempts.length) return null;
  const columns = [{ title: "Attempt", right: true }, { title: "State" }, { title: "Why" }, { title: "On" }, { title: "Ran", right: true }, { title: "Checkpoint", right: true }, { title: "Exit", right: true }, { title: "Cost", right: true }];
  const ran = (each) => (each.started_at ? length(((each.ended_at ? Date.parse(each.ended_at) : Date.now()) - Date.parse(each.started_at)) / 1000) : "–");
  const rows = attempts.slice().reverse().map((each) => [each.attempt, html`<${State} state=${each.state} />`, reason(each), html`${each.accelerator} × ${each.accelerators} <span class="quiet">${each.placement.join(" ")}</span>`,
    ran(each), each.checkpoint_step === null ? "–" : count(each.checkpoint_step), each.signal ? `signal ${each.signal}` : each.exit_code ?? "–", money(each.usd)]);
  return html`<section aria-labelledby="attempts"><h2 id="attempts">Attempts</h2><${Table} caption="Attempts" columns=${columns} rows=${rows} /></section>`;
}

function Cost({ job }) {
  const used = Object.entries(job.accelerator_s);
  return html`<section aria-labelledby="cost"><h2 id="cost">Cost</h2><dl class="facts">
    <div><dt>spent</dt><dd>${money(job.usd)}</dd></div>
    ${used.map(([name, seconds]) => html`<div><dt>${name}</dt><dd>${figure(seconds / 3600)} h</dd></div>`)}
    ${job.value_usd_per_h ? html`<div><dt>worth</dt><dd>${money(job.value_usd_per_h)}/h <span class="quiet">says the ${job.value_by || "job"}</span></dd></div>` : null}</dl></section>`;
}

const mayChange = (job, can, user) => can("operator") || (can("user") && job.user === user.user);

function Actions({ job, can, user, again }) {
  if (!mayChange(job, can, user) || isOver(job.state)) return null;
  const post = (verb) => () => call("POST", `/jobs/${job.id}/${verb}`);
  return html`<div class="actions">
    ${job.state === "HELD" ? html`<${Action} title="Release" act=${post("release")} onDone=${again} />`
      : html`<${Action} title="Hold" ask=${`Job ${job.id} saves its work if it can, leaves its accelerators, and waits until somebody releases it.`} act=${post("hold")} onDone=${again} />`}
    <${Action} title="Cancel" danger ask=${`Job ${job.id} ends for good. What it saved stays.`} act=${post("cancel")} onDone=${again} /></div>`;
}

const ranksOf = (job) => (job.attempt_list.length ? job.attempt_list[job.attempt_list.length - 1].accelerators : job.accelerators);

export function JobPage({ rest, can, user }) {
  const id = rest[0];
  const load = async (signal) => {
    const [job, explained] = await Promise.all([get(`/jobs/${encodeURIComponent(id)}`, signal), get(`/jobs/${encodeURIComponent(id)}/explain`, signal)]);
    return { job, explained };
  };
  const { data, problem, again } = useLoaded(load, id, 3);
  if (!data) return problem ? html`<h1>Job ${id}</h1><${Trouble} problem=${problem} />` : html`<h1 class="hidden">Job ${id}</h1><${Loading} />`;
  const { job, explained } = data;
  const start = foreseen(job.forecast, "start");
  return html`<div class="title"><h1><span class="number">${job.id}</span> <span class="name">${job.name}</span></h1><${State} state=${job.state} />
      <${Actions} job=${job} can=${can} user=${user} again=${again} /></div>
    <p class="quiet">${job.user} in ${job.project} · ${count(job.accelerators)} accelerator${job.accelerators === 1 ? "" : "s"}${job.accelerator ? ` on ${job.accelerator}` : ""} · priority ${job.priority} · submitted <time title=${exactly(job.submitted_at)}>${instant(job.submitted_at)}</time>${job.ended_at ? html` · ended <time title=${exactly(job.ended_at)}>${instant(job.ended_at)}</time>` : html` · ${length(secondsSince(job.submitted_at))} old`}</p>
    ${start && !isOver(job.state) ? html`<p class="expected">Starts ${start}.</p>` : null}
    <${Trouble} problem=${problem} />
    <${Timeline} job=${job} />
    <div class="columns even"><div><${Progress} job=${job} /><${Why} explained=${explained} job=${job} /></div><div><${Cost} job=${job} /><${Speeds} speeds=${explained.speeds} /></div></div>
    ${job.attempts ? html`<${Log} job=${job.id} attempts=${job.attempts} ranks=${ranksOf(job)} />` : null}
    <${Attempts} attempts=${job.attempt_list} />
    <${Files} job=${job.id} isOver=${isOver(job.state)} />
    <details><summary>What was asked for</summary><pre class="spec">${JSON.stringify(job.spec, null, 2)}</pre></details>`;
}
