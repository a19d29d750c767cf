// Who is entitled to what, who holds what and who lent it; and what one more accelerator of each pool was worth.

import { html, useState } from "./vendor/preact-htm.js";
import { get } from "./server.js";
import { Loading, Table, Trouble, useLoaded } from "./parts.js";
import { figure, length, money, percent } from "./words.js";

const byType = (counts) => Object.entries(counts).filter(([, many]) => many).map(([name, many]) => `${figure(many)} ${name}`).join(", ") || "–";

export function SharesPage() {
  const { data, problem } = useLoaded((signal) => get("/share", signal), "shares", 10);
  const columns = [{ title: "Project, user" }, { title: "Entitled", right: true }, { title: "Holds", right: true }, { title: "Machines" }, { title: "Asks for", right: true }, { title: "Used lately", right: true }, { title: "Of all", right: true }, { title: "Borrowed from" }];
  const rows = (data || []).map((share) => [
    html`<span class=${share.name.includes("/") ? "user" : "name"}>${share.name}</span>`,
    html`<span title=${`weight ${figure(share.weight)}, guaranteed ${figure(share.guaranteed)}; ${figure(share.nominal)} if everybody had work`}>${figure(share.entitled)}</span>`,
    html`<span title=${share.because}>${figure(share.held_units)}</span>`,
    byType(share.held),
    figure(share.demand),
    html`<span title=${`accelerator-hours, old ones halved every ${length(share.half_life_s)}`}>${figure(share.used_h)} h</span>`,
    percent(share.used_part),
    share.borrowed.map((loan) => `${figure(loan.accelerators)} of ${loan.name}`).join(", ") || "–",
  ]);
  const reasons = (data || []).filter((share) => share.because);
  return html`<h1>Shares</h1><${Trouble} problem=${problem} />
    ${data ? html`<p class="quiet">In fair-share units: accelerators of the fleet's average speed for the jobs that hold them.</p>
      <${Table} caption="Shares" columns=${columns} rows=${rows} />${rows.length ? null : html`<p class="quiet">No project has jobs, and none is set up.</p>`}
      ${reasons.map((share) => html`<p class="quiet">${share.name}: ${share.because}</p>`)}` : html`<${Loading} />`}
    <${Worth} />`;
}

const DAYS = { "1": "a day", "7": "a week", "28": "four weeks" };

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
