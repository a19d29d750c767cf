// How the cluster did lately: completion beside what no scheduler could have undercut, use, losses, money, by project.

import { html, useState } from "./vendor/preact-htm.js";
import { get } from "./server.js";
import { Loading, Table, Trouble, useLoaded } from "./parts.js";
import { count, exactly, figure, instant, length, money, percent } from "./words.js";

const WINDOWS = { "1": "a day", "7": "a week", "28": "four weeks" };

const aboveBound = (regret) => (regret && regret.bound_s > 0 ? regret.achieved_s / regret.bound_s - 1 : null);

function Tiles({ total, types }) {
  const there = types.reduce((sum, type) => sum + type.there_h, 0);
  const held = types.reduce((sum, type) => sum + type.held_h, 0);
  const tile = (value, said) => html`<div class="tile"><b>${value}</b><span>${said}</span></div>`;
  return html`<div class="tiles">${tile(count(total.succeeded), "jobs succeeded")}
    ${tile(length(total.completion_s), "from submission to end, in the mean")}
    ${tile(total.regret ? length(total.regret.bound_s) : "–", "no scheduler's mean would have been lower")}
    ${tile(percent(aboveBound(total.regret)), "above that bound")}
    ${there ? tile(percent(held / there), "of accelerator-hours were held") : null}
    ${tile(money(total.on_demand_usd - total.usd), "saved against all on demand")}</div>`;
}

export function ReportPage() {
  const [days, setDays] = useState("7");
  const { data, problem } = useLoaded((signal) => get(`/report?since_s=${86400 * Number(days)}`, signal), `report ${days}`);
  const columns = [{ title: "Project" }, { title: "Submitted", right: true }, { title: "Succeeded", right: true }, { title: "Completion", right: true }, { title: "Above its bound", right: true }, { title: "Waited", right: true }, { title: "Moved or lost", right: true }, { title: "Work lost", right: true }, { title: "Held", right: true }, { title: "Cost", right: true }];
  const cells = (row) => [row.project || "all", count(row.submitted), count(row.succeeded), length(row.completion_s),
    html`<span title=${row.regret ? `${count(row.regret.jobs)} jobs; alone on the machines ${length(row.regret.alone_s)}` : "no job of it could be bounded"}>${percent(aboveBound(row.regret))}</span>`,
    length(row.waiting_s), `${count(row.preemptions)}, ${count(row.losses)}`, `${figure(row.lost_h)} h`, `${figure(row.accelerator_h)} h`, money(row.usd)];
  const types = [{ title: "Type" }, { title: "There at most", right: true }, { title: "There", right: true }, { title: "Held", right: true }];
  const left = data ? Object.entries(data.left_out).filter(([, many]) => many) : [];
  return html`<h1>Report</h1>
    <div class="filters"><label>Over the last <select onChange=${(event) => setDays(event.target.value)}>${Object.entries(WINDOWS).map(([value, name]) => html`<option value=${value} selected=${value === days}>${name}</option>`)}</select></label></div>
    <${Trouble} problem=${problem} />
    ${data ? html`<p class="quiet">From <time title=${exactly(1000 * data.since)}>${instant(data.since)}</time> to <time title=${exactly(1000 * data.until)}>${instant(data.until)}</time>.
        The bound is proved and below every schedule: restarts are free in it. ${data.partial ? "It is of the jobs that you may see." : ""}</p>
      <${Tiles} total=${data.total} types=${data.types} />
      <${Table} caption="By project" columns=${columns} rows=${[...data.projects, data.total].map(cells)} />
      ${data.types.length ? html`<h2>Accelerators</h2><${Table} caption="Accelerators" columns=${types} rows=${data.types.map((type) => [type.accelerator, figure(type.most), `${figure(type.there_h)} h`, percent(type.there_h ? type.held_h / type.there_h : null)])} />` : null}
      ${left.length ? html`<p class="quiet">Not in the bound: ${left.map(([why, many]) => `${count(many)} ${why}`).join(", ")}.</p>` : null}` : problem ? null : html`<${Loading} />`}`;
}
