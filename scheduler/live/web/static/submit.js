// Submitting a job: a form made from the schema of job files, or the file itself; a dry run says what would happen.

import { html, useState } from "./vendor/preact-htm.js";
import { call, get } from "./server.js";
import { Menu, taken } from "./futures.js";
import { Loading, Table, Trouble, useLoaded } from "./parts.js";
import { count, figure, money, reason } from "./words.js";

// Fields that most jobs have, in this order; the others follow, folded.
const FIRST = ["name", "run", "workdir", "project", "steps", "priority"];
const HINTS = { run: "python train.py", workdir: "/home/ada/digits", "resources.accelerators": "a100:4, or any:1" };
const EXAMPLE = `name: digits
run: python train.py
workdir: /home/ada/digits
steps: 2000
resources: {accelerators: "any:1"}
`;

/** The part of a schema that a form can show: {type} of the first alternative that is a plain value; else null. */
function plain(schema, models) {
  if (!schema) return null;
  if (schema.$ref) return plain(models[schema.$ref.split("/").pop()], models);
  for (const each of schema.anyOf || schema.allOf || []) {
    const found = plain(each, models);
    if (found) return found;
  }
  if (schema.enum) return { type: "choice", choices: schema.enum };
  return ["string", "integer", "number", "boolean"].includes(schema.type) ? { type: schema.type } : null;
}

/** The properties of a nested group of fields; null for anything else. */
function group(schema, models) {
  if (!schema) return null;
  if (schema.$ref) return group(models[schema.$ref.split("/").pop()], models);
  for (const each of schema.anyOf || schema.allOf || []) {
    const found = group(each, models);
    if (found) return found;
  }
  return schema.properties || null;
}

function Field({ name, field, value, onChange }) {
  const id = `field-${name}`;
  const title = name.split(".").pop().replaceAll("_", " ");
  if (field.type === "boolean")
    return html`<label class="check" for=${id}><input id=${id} type="checkbox" checked=${value === true} onChange=${(event) => onChange(event.target.checked || undefined)} /> ${title}</label>`;
  if (field.type === "choice")
    return html`<label for=${id}>${title} <select id=${id} onChange=${(event) => onChange(event.target.value || undefined)}><option value=""></option>${field.choices.map((each) => html`<option selected=${each === value}>${each}</option>`)}</select></label>`;
  const numeric = field.type !== "string";
  const read = (text) => (text === "" ? undefined : numeric ? Number(text) : text);
  return html`<label for=${id} class=${HINTS[name] ? "wide" : ""}>${title} <input id=${id} name=${name} placeholder=${HINTS[name] || ""} value=${value ?? ""} inputmode=${numeric ? "decimal" : undefined} onInput=${(event) => onChange(read(event.target.value))} /></label>`;
}

function set(spec, path, value) {
  const [first, ...rest] = path;
  const copy = { ...spec };
  const inner = rest.length ? set(copy[first] || {}, rest, value) : value;
  if (inner === undefined || (rest.length && !Object.keys(inner).length)) delete copy[first];
  else copy[first] = inner;
  return copy;
}

function Form({ spec, setSpec }) {
  const { data, problem } = useLoaded((signal) => get("/openapi.json", signal), "schema");
  if (!data) return problem ? html`<${Trouble} problem=${problem} />` : html`<${Loading} />`;
  const models = data.components.schemas;
  const all = models.JobSpec.properties;
  const draw = (path, schema, value) => {
    const field = plain(schema, models);
    return field && html`<${Field} key=${path.join(".")} name=${path.join(".")} field=${field} value=${value} onChange=${(next) => setSpec(set(spec, path, next))} />`;
  };
  const others = Object.keys(all).filter((name) => !FIRST.includes(name) && name !== "schema_version");
  const simple = others.filter((name) => plain(all[name], models));
  const groups = others.filter((name) => !plain(all[name], models) && group(all[name], models) && name !== "resources");
  return html`<div class="fields">${FIRST.filter((name) => all[name]).map((name) => draw([name], all[name], spec[name]))}
      ${draw(["resources", "accelerators"], { type: "string" }, (spec.resources || {}).accelerators)}</div>
    <details><summary>More fields</summary><div class="fields">${simple.map((name) => draw([name], all[name], spec[name]))}</div></details>
    ${["resources", ...groups].map((name) => {
      const inner = Object.entries(group(all[name], models) || {}).filter(([key, schema]) => plain(schema, models) && `${name}.${key}` !== "resources.accelerators");
      return inner.length ? html`<details><summary>${name.replaceAll("_", " ")}</summary><div class="fields">${inner.map(([key, schema]) => draw([name, key], schema, (spec[name] || {})[key]))}</div></details>` : null;
    })}
    <p class="quiet">Fields that hold lists or other groups are written in the file.</p>`;
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
  const [menu, setMenu] = useState(null);
  const [problem, setProblem] = useState(null);
  const body = () => (asFile ? [text, { type: "application/yaml" }] : [spec, {}]);
  const attempt = (work) => async () => {
    try {
      setProblem(null);
      await work();
    } catch (error) {
      setProblem(error);
    }
  };
  const tryOut = attempt(async () => {
    setTold(null);
    const [sent, options] = body();
    setTold(await call("POST", "/jobs:dryrun", sent, options));
  });
  const quote = attempt(async () => {
    setMenu(null);
    const [sent, options] = body();
    setMenu(await call("POST", "/jobs:quote", sent, options));
  });
  const take = (way) => attempt(async () => {
    const made = await call("POST", "/jobs", taken(spec, menu, way), { headers: { "Idempotency-Key": newKey() } });
    location.hash = `#/jobs/${made.id}`;
  })();
  const submit = attempt(async () => {
    const [sent, options] = body();
    const made = await call("POST", "/jobs", sent, { ...options, headers: { "Idempotency-Key": newKey() } });
    location.hash = `#/jobs/${made.id}`;
  });
  const showFile = () => {
    if (Object.keys(spec).length) setText(JSON.stringify(spec, null, 2) + "\n");
    setAsFile(true);
  };
  return html`<h1>Submit a job</h1>
    <div class="tabs" role="group" aria-label="How to write the job"><button aria-pressed=${!asFile} onClick=${() => setAsFile(false)}>Form</button><button aria-pressed=${asFile} onClick=${showFile}>File</button></div>
    <form onSubmit=${(event) => { event.preventDefault(); submit(); }}>
      ${asFile ? html`<label for="file">Job file (YAML)</label><textarea id="file" spellcheck="false" rows="16" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>` : html`<${Form} spec=${spec} setSpec=${setSpec} />`}
      <${Trouble} problem=${problem} />
      <p class="actions"><button type="button" onClick=${tryOut}>Dry run</button> ${asFile ? null : html`<button type="button" onClick=${quote}>Quote</button>`} <button class="first">Submit</button></p></form>
    ${told ? html`<${Outcome} told=${told} />` : null}${menu && !asFile ? html`<${Menu} told=${menu} onTake=${take} />` : null}`;
}
