// Reports that people published: pages of simulations and comparisons, listed, and one of them in a frame.
//
// A report is somebody else's page. Its frame is a sandbox without an origin, and the server sends it with a policy of
// its own: its scripts draw charts, and reach neither this page nor the server.

import { html } from "./vendor/preact-htm.js";
import { call, get, getBytes } from "./server.js";
import { Action, Loading, Table, Trouble, save, useLoaded } from "./parts.js";
import { exactly, instant, size } from "./words.js";

const readers = (report) => (report.project === "*" ? "everybody" : report.project);
const at = (report) => html`<time title=${exactly(report.published_at)}>${instant(report.published_at)}</time>`;

export function Published() {
  const { data, problem } = useLoaded((signal) => get("/reports", signal), "reports", 60);
  const columns = [{ title: "Report" }, { title: "Readers" }, { title: "By" }, { title: "Published" }, { title: "Size", right: true }];
  const rows = (data || []).map((report) => [html`<a href="#/report/${report.id}"><span class="number">${report.id}</span> <span class="name">${report.title}</span></a>`,
    readers(report), html`<span class="name">${report.user}</span>`, at(report), size(report.size_bytes)]);
  return html`<section aria-labelledby="published"><h2 id="published">Published reports</h2><${Trouble} problem=${problem} />
    ${rows.length ? html`<${Table} caption="Published reports" columns=${columns} rows=${rows} />` : null}
    ${data && !rows.length ? html`<p class="quiet">None yet. <code>walras report publish DIR</code> publishes what <code>walras simulate compare --out DIR</code> drew.</p>` : null}</section>`;
}

export function PublishedPage({ id, user, can }) {
  const path = `/reports/${encodeURIComponent(id)}`;
  const { data: report, problem } = useLoaded((signal) => get(path, signal), `report ${id}`);
  if (!report) return problem ? html`<h1>Report ${id}</h1><${Trouble} problem=${problem} />` : html`<h1 class="hidden">Report ${id}</h1><${Loading} />`;
  const keep = async () => save(new Blob([await getBytes(`${path}/page`)], { type: "application/octet-stream" }), `report-${report.id}.html`);
  const remove = async () => {
    await call("DELETE", path);
    location.hash = "#/report";
  };
  const may = can("operator") || (can("user") && report.user === user.user);
  return html`<div class="title"><h1><span class="number">${report.id}</span> <span class="name">${report.title}</span></h1>
      <div class="actions"><${Action} title="Save" act=${keep} />
        ${may ? html`<${Action} title="Remove" danger ask="The report is removed for all of its readers." act=${remove} />` : null}</div></div>
    <p class="quiet">Published by ${report.user}, ${at(report)}, for ${report.project === "*" ? "everybody" : `readers of ${report.project}`}. What is in the frame is theirs, not the server's: never type a token there.</p>
    <p><a href="#/report">All reports</a></p>
    <iframe class="report" sandbox="allow-scripts" referrerpolicy="no-referrer" title=${report.title} src=${`/api/v1${path}/page`}></iframe>`;
}
