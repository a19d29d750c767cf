// What is kept of a job's results: the files of each machine of its gang, and saving one.

import { html } from "./vendor/preact-htm.js";
import { get, getBytes } from "./server.js";
import { Action, Table, Trouble, save, useLoaded } from "./parts.js";
import { count, instant, size } from "./words.js";

// A larger file would have to fit into the page's memory twice.
const SAVED_MOST = 256 * 2 ** 20;
const SHOWN_MOST = 200;

async function kept(job, signal) {
  const base = `/jobs/${encodeURIComponent(job)}/outputs`;
  const machines = (await get(base, signal)).items;
  const lists = await Promise.all(machines.map((each) => (each.tree ? get(`${base}/trees/${each.tree}`, signal) : { files: [] })));
  const below = (machine) => (machine.node_rank ? `node-${machine.node_rank}/` : "");
  return {
    machines,
    files: machines.flatMap((machine, at) => lists[at].files.map((file) => ({ ...file, shown: below(machine) + file.path }))),
  };
}

async function saveFile(job, file) {
  const pieces = [];
  for (const chunk of file.chunks) pieces.push(await getBytes(`/jobs/${encodeURIComponent(job)}/outputs/chunks/${chunk}`));
  save(new Blob(pieces, { type: "application/octet-stream" }), file.path.split("/").pop());
}

export function Files({ job, isOver }) {
  const { data, problem } = useLoaded((signal) => kept(job, signal), `files ${job}`, isOver ? 60 : 15);
  if (!data || !data.machines.length) return html`<${Trouble} problem=${problem} />`;
  const rows = data.files.slice(0, SHOWN_MOST).map((file) => [
    html`<code>${file.shown}</code>`,
    size(file.size),
    file.size <= SAVED_MOST ? html`<${Action} title="Save" act=${() => saveFile(job, file)} />` : html`<code class="quiet">walras fetch ${job}</code>`,
  ]);
  const last = data.machines.map((each) => each.collected_at).sort().pop();
  const problems = data.machines.filter((each) => each.problem);
  return html`<section aria-labelledby="files"><h2 id="files">Files</h2><${Trouble} problem=${problem} />
    <p class="quiet">${count(data.files.length)} file${data.files.length === 1 ? "" : "s"}, collected ${instant(last)}${data.files.length > SHOWN_MOST ? `; the first ${SHOWN_MOST} are listed, walras fetch ${job} brings all` : ""}.</p>
    ${rows.length ? html`<${Table} caption="Files" columns=${[{ title: "File" }, { title: "Size", right: true }, { title: "" }]} rows=${rows} />` : null}
    ${problems.map((each) => html`<p class="quiet">${each.problem}</p>`)}</section>`;
}
