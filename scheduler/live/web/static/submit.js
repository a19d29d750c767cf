// Submitting a job: a form with the fields that most jobs need and a script that travels, or a job file.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { call } from "./server.js";
import { Menu, taken } from "./futures.js";
import { Table, Trouble } from "./parts.js";
import { count, figure, money, reason, size } from "./words.js";

// [field, what it is called here, an example].
const FIELDS = [
  ["name", "name", "digits"],
  ["run", "run", "python train.py"],
  ["workdir", "folder on the machines", "/home/ada/digits"],
  ["project", "project", ""],
  ["priority", "priority", "0 to 100, or high"],
  ["resources.accelerators", "accelerators", "a100:4, or any:1"],
  ["resources.memory", "memory for each accelerator", "24GB"],
  ["steps", "steps", "2000"],
  ["limits.max_runtime", "longest run time", "4h"],
  ["retry.max_restarts", "restarts after failures", "2"],
];
const EXAMPLE = `name: digits
run: python train.py
workdir: /home/ada/digits
steps: 2000
resources: {accelerators: "any:1"}
`;
const CHUNK_BYTES = 4 * 2 ** 20;
const SCRIPT_BYTES = 64 * 2 ** 20;

const at = (spec, path) => path.split(".").reduce((here, name) => (here || {})[name], spec);

function set(spec, [first, ...rest], value) {
  const copy = { ...spec };
  const inner = rest.length ? set(copy[first] || {}, rest, value) : value;
  if (inner === undefined || (rest.length && !Object.keys(inner).length)) delete copy[first];
  else copy[first] = inner;
  return copy;
}

/** Text of a field as a job file would have it: a number where it is one. */
const read = (path, text) => (text.trim() === "" ? undefined : ["steps", "priority", "retry.max_restarts"].includes(path) && isFinite(text) ? Number(text) : text);

async function hashed(bytes) {
  if (!crypto.subtle) throw new Error("A browser sends files over TLS or to localhost alone: open this page so, or use `walras submit FILE`.");
  return [...new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))].map((each) => each.toString(16).padStart(2, "0")).join("");
}

/** Makes a script durable with the server; returns the job's `code` and the command that runs it. */
async function sent(file) {
  if (file.size > SCRIPT_BYTES) throw new Error(`${file.name} holds ${size(file.size)}; a file sent from here has at most ${size(SCRIPT_BYTES)}.`);
  const bytes = await file.arrayBuffer();
  const chunks = [];
  for (let from = 0; from < bytes.byteLength; from += CHUNK_BYTES) {
    const piece = bytes.slice(from, from + CHUNK_BYTES);
    chunks.push(await hashed(piece));
    await call("PUT", `/content/v1/chunks/${chunks[chunks.length - 1]}`, piece, { type: "application/octet-stream" });
  }
  const listed = { path: file.name, size: file.size, is_executable: true, chunks };
  const { name } = await call("POST", "/content/v1/trees", { files: [listed] });
  const quoted = `'${file.name.replaceAll("'", "'\\''")}'`;
  const command = { py: `python ${quoted}`, sh: `bash ${quoted}` }[file.name.split(".").pop()] || `./${quoted}`;
  return { code: { tree: name, files: 1, size: file.size }, command };
}

function Fields({ spec, setSpec, onScript }) {
  const field = ([path, title, hint]) => html`<label for=${`field-${path}`} class=${path === "run" ? "wide" : ""}>${title}
    <input id=${`field-${path}`} name=${path} placeholder=${hint} value=${at(spec, path) ?? ""} disabled=${path === "workdir" && spec.code} onInput=${(event) => setSpec(set(spec, path.split("."), read(path, event.target.value)))} /></label>`;
  return html`<div class="fields"><label for="script" class="wide">your script, which travels with the job <input id="script" type="file" onChange=${(event) => onScript(event.target.files[0])} /></label>
      ${FIELDS.map(field)}</div>
    <p class="quiet">The other fields of a job file are written in the file; <code>walras submit --explain FIELD</code> says what they mean.</p>`;
}

function Outcome({ told }) {
  const columns = [{ title: "Place" }, { title: "Steps/s", right: true }, { title: "Known by" }, { title: "Price", right: true }, { title: "USD/h", right: true }, { title: "Free now", right: true }];
  const rows = told.configurations.map((each) => [html`${each.accelerator} × ${each.accelerators} <span class="quiet">${each.pool}</span>`, figure(each.steps_per_s), each.source, figure(each.price), money(each.usd_per_h), `${count(each.free)} of ${count(each.capacity)}`]);
  const chosen = told.chosen;
  return html`<section class="outcome" aria-labelledby="outcome" role="status"><h2 id="outcome">What would happen now</h2>
    <p>${chosen ? html`It would start at once on <b>${chosen.accelerators} ${chosen.accelerator}</b>.` : html`It would wait: ${reason(told) || "nothing suits it now"}.`} <span class="quiet">${told.detail}</span></p>
    ${told.value_usd_per_h ? html`<p>An hour of it is worth ${money(told.value_usd_per_h)}${told.value_by ? `, says the ${told.value_by}` : ""}.</p>` : null}
    ${told.note ? html`<p class="fix">${told.note}</p>` : null}
    ${rows.length ? html`<${Table} caption="Configurations" columns=${columns} rows=${rows} />` : null}
    <p class="quiet">${count(told.accelerators)} accelerator${told.accelerators === 1 ? "" : "s"}, kind ${told.kind}</p></section>`;
}

const newKey = () => (crypto.randomUUID ? crypto.randomUUID() : String(Math.random()));

export function SubmitPage() {
  const [asFile, setAsFile] = useState(false);
  const [spec, setSpec] = useState({});
  const [text, setText] = useState(EXAMPLE);
  const [told, setTold] = useState(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const result = useRef(null);
  useEffect(() => { if (told && result.current) result.current.scrollIntoView({ block: "nearest" }); }, [told]);
  const attempt = (work) => async () => {
    setBusy(true);
    setTold(null);
    setProblem(null);
    await work().catch(setProblem);
    setBusy(false);
  };
  const ask = (path, options = {}) => (asFile ? call("POST", path, text, { ...options, type: "application/yaml" }) : call("POST", path, spec, options));
  const key = () => ({ headers: { "Idempotency-Key": crypto.randomUUID ? crypto.randomUUID() : String(Math.random()) } });
  const open = (made) => (location.hash = `#/jobs/${made.id}`);
  const submit = attempt(async () => open(await ask("/jobs", key())));
  const take = (menu) => (way) => attempt(async () => open(await call("POST", "/jobs", taken(spec, menu, way), key())))();
  const bring = (file) => attempt(async () => {
    const { code, workdir, ...rest } = spec;
    const found = file && (await sent(file));
    setSpec(found ? { name: file.name.replace(/\.\w+$/, ""), ...rest, run: found.command, code: found.code } : rest);
  })();
  const showFile = () => {
    if (Object.keys(spec).length) setText(JSON.stringify(spec, null, 2) + "\n");
    setAsFile(true);
  };
  return html`<h1>Submit a job</h1>
    <div class="tabs" role="group" aria-label="How to write the job"><button aria-pressed=${!asFile} onClick=${() => setAsFile(false)}>Form</button><button aria-pressed=${asFile} onClick=${showFile}>File</button></div>
    <div class="columns even"><form onSubmit=${(event) => { event.preventDefault(); submit(); }}>
      ${asFile ? html`<label for="job-file">Open a job file <input id="job-file" type="file" accept=".yaml,.yml,.json" onChange=${attempt(async () => setText(await document.getElementById("job-file").files[0].text()))} /></label>
        <label for="file">Job file (YAML)</label><textarea id="file" spellcheck="false" rows="16" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>` : html`<${Fields} spec=${spec} setSpec=${setSpec} onScript=${bring} />`}
      <p class="actions"><button type="button" disabled=${busy} onClick=${attempt(async () => setTold(html`<${Outcome} told=${await ask("/jobs:dryrun")} />`))}>Dry run</button>
        ${asFile ? null : html`<button type="button" disabled=${busy} onClick=${attempt(async () => { const menu = await ask("/jobs:quote"); setTold(html`<${Menu} told=${menu} onTake=${take(menu)} />`); })}>Quote</button>`}
        <button class="first" disabled=${busy}>Submit</button></p></form>
    <div ref=${result}><${Trouble} problem=${problem} />${busy ? html`<p class="quiet" role="status">The server looks …</p>` : told}</div></div>`;
}
