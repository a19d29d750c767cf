// Who is entitled to what, who holds what and who lent it; and what one more accelerator of each pool was worth.

import { html, useState } from "./vendor/preact-htm.js";
import { get } from "./server.js";
import { Chart, Loading, Table, Trouble, useLoaded } from "./parts.js";
import { figure, length, money, percent } from "./words.js";

const byType = (counts) => Object.entries(counts).filter(([, many]) => many).map(([name, many]) => `${figure(many)} ${name}`).join(", ") || "–";

const DAYS = { "1": "a day", "7": "a week", "28": "four weeks" };

export function SharesPage() {
  const { data, problem } = useLoaded((signal) => get("/share", signal), "shares", 10);
  const columns = [{ title: "Project, user" }, { title: "Holds" }, { title: "Asks for", right: true }, { title: "Entitled, units", right: true }, { title: "Holds, units", right: true }, { title: "Used lately", right: true }, { title: "Of all", right: true }, { title: "Borrowed from" }];
  const rows = (data || []).map((share) => [
    html`<span class=${share.name.includes("/") ? "user" : "name"}>${share.name}</span>`,
    byType(share.held),
    figure(share.demand),
    html`<span title=${`weight ${figure(share.weight)}, guaranteed ${figure(share.guaranteed)}; ${figure(share.nominal)} if everybody had work`}>${figure(share.entitled)}</span>`,
    html`<span title=${share.because}>${figure(share.held_units)}</span>`,
    html`<span title=${`accelerator-hours, old ones halved every ${length(share.half_life_s)}`}>${figure(share.used_h)} h</span>`,
    percent(share.used_part),
    share.borrowed.map((loan) => `${figure(loan.accelerators)} of ${loan.name}`).join(", ") || "–",
  ]);
  const reasons = (data || []).filter((share) => share.because && !share.name.includes("/"));
  return html`<h1>Shares</h1><${Trouble} problem=${problem} />
    ${data ? html`<p class="quiet">A unit is an accelerator of the fleet's average speed for the jobs that hold it: a fast one counts as several.</p>
      <${Table} caption="Shares" columns=${columns} rows=${rows} />${rows.length ? null : html`<p class="quiet">No project has jobs, and none is set up.</p>`}
      ${reasons.map((share) => html`<p class="quiet">${share.because}</p>`)}` : html`<${Loading} />`}
    <${HeldOverTime} standings=${data || []} />
    <${Worth} />`;
}

/** What each project held, and what it is entitled to if everybody has work: what is above that was borrowed. */
function HeldOverTime({ standings }) {
  const [days, setDays] = useState("7");
  const { data, problem } = useLoaded((signal) => get(`/usage/history?since_s=${86400 * Number(days)}`, signal), `held ${days}`, 60);
  const nominal = Object.fromEntries(standings.map((share) => [share.name, share.nominal]));
  const charts = (data ? data.items : []).map((project) => {
    const part = nominal[project.project];
    // A mean holds to the end of its step: the last one to this instant.
    const instants = [...project.accelerators.map((_, step) => data.since + step * data.step_s), data.until];
    const drawn = [...project.accelerators, project.accelerators.at(-1)];
    const series = [{ stroke: "hsl(210 60% 50%)", paths: window.uPlot.paths.stepped({ align: 1 }) }, { stroke: "hsl(35 70% 45%)", dash: [4, 4] }];
    const line = [instants, drawn, instants.map(() => (part === undefined ? null : part))];
    const borrowed = part === undefined ? [] : project.accelerators.map((held) => Math.max(0, held - part));
    const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0);
    const words = `${figure(mean(project.accelerators))} held on average${part === undefined ? "" : `, ${figure(part)} its part, ${figure(mean(borrowed))} borrowed`}`;
    return html`<figure key=${project.project}><figcaption><b>${project.project}</b> <span class="quiet">${words}</span></figcaption>
      <${Chart} data=${line} series=${series} height=${120} label=${`Accelerators held by ${project.project} over time: ${words}`} /></figure>`;
  });
  return html`<section aria-labelledby="held"><h2 id="held">Held over time</h2>
    <div class="filters"><label>Over the last <select onChange=${(event) => setDays(event.target.value)}>${Object.entries(DAYS).map(([value, name]) => html`<option value=${value} selected=${value === days}>${name}</option>`)}</select></label></div>
    <${Trouble} problem=${problem} />
    ${data ? (charts.length ? html`<p class="quiet">Accelerators; dashed: the part that weights give it now if everybody has work.</p>${charts}${data.left_out ? html`<p class="quiet">and ${figure(data.left_out)} projects more</p>` : null}` : html`<p class="quiet">No job of your projects held an accelerator.</p>`) : null}</section>`;
}

/** Means by pool: what one more of its accelerators was worth, beside its rent. */
function Worth() {
  const [days, setDays] = useState("7");
  const { data, problem } = useLoaded((signal) => get(`/worth?since_s=${86400 * Number(days)}`, signal), `worth ${days}`, 60);
  const pools = {};
  for (const hour of data ? data.items : []) {
    const sum = (pools[hour.pool] ??= { seconds: 0, usd: 0, known: 0, rent: 0 });
    sum.seconds += hour.seconds;
    sum.rent += hour.seconds * hour.rent_usd_per_h;
    if (hour.usd_per_h !== null) {
      sum.known += hour.seconds;
      sum.usd += hour.seconds * hour.usd_per_h;
    }
  }
  const columns = [{ title: "Pool" }, { title: "Worth an hour", right: true }, { title: "Rent an hour", right: true }];
  const rows = Object.entries(pools).sort().map(([pool, sum]) => [pool, sum.known ? money(sum.usd / sum.known) : "nobody says", money(sum.rent / sum.seconds)]);
  return html`<section aria-labelledby="worth"><h2 id="worth">What one more accelerator was worth</h2>
    <div class="filters"><label>Over the last <select onChange=${(event) => setDays(event.target.value)}>${Object.entries(DAYS).map(([value, name]) => html`<option value=${value} selected=${value === days}>${name}</option>`)}</select></label></div>
    <${Trouble} problem=${problem} />
    ${data ? (rows.length ? html`<${Table} caption="Worth" columns=${columns} rows=${rows} />` : html`<p class="quiet">No plan has had prices in this time.</p>`) : null}</section>`;
}
