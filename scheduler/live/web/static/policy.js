// The policy: which one is in force, how it is changed and tried, and those that were in force before.

import { html, useState } from "./vendor/preact-htm.js";
import { call, get } from "./server.js";
import { Action, Chart, Loading, Table, Trouble, useLoaded, useOverview } from "./parts.js";
import { Difference } from "./futures.js";
import { exactly, instant, percent } from "./words.js";

/** A version as a policy file. */
const written = (version) => ({ policy: { name: version.name, parameters: version.parameters }, rules: version.rules });

const put = (policy, query) => call("PUT", `/policy?${new URLSearchParams(query)}`, policy);

/** [{ name, before, after }] of all fields in which two versions differ. */
function differences(before, after) {
  const flat = (version) => ({ policy: version.name, ...version.parameters, ...version.rules });
  const [old, now] = [flat(before), flat(after)];
  const text = (value) => (value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return [...new Set([...Object.keys(old), ...Object.keys(now)])]
    .map((name) => ({ name, before: text(old[name]), after: text(now[name]) }))
    .filter((each) => each.before !== each.after);
}

function Differences({ before, after }) {
  const found = differences(before, after);
  if (!found.length) return html`<p class="quiet">Nothing is different.</p>`;
  const columns = [{ title: "Field" }, { title: `Version ${before.version}` }, { title: after.version ? `Version ${after.version}` : "This one" }];
  return html`<${Table} caption="Differences" columns=${columns} rows=${found.map((each) => [each.name, each.before, each.after])} />`;
}

/** Another policy: checked, compared with the one in force, tried on futures of the live state, put in force. */
function Change({ current, again }) {
  const [text, setText] = useState(JSON.stringify(written(current), null, 2));
  const [reason, setReason] = useState("");
  const [told, setTold] = useState(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const read = () => {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new Error(`This is no JSON: ${error.message}`);
    }
  };
  const attempt = (work) => async () => {
    setBusy(true);
    setTold(null);
    try {
      setTold(await work(read()));
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
  };
  const check = attempt(async (policy) => ({ checked: await put(policy, { dry_run: "true" }) }));
  const tryOut = attempt(async (policy) => ({ futures: await call("POST", "/whatif", { policy }) }));
  const apply = async () => {
    await put(read(), { if_version: String(current.version), ...(reason.trim() ? { reason: reason.trim() } : {}) });
    setReason("");
    again();
  };
  return html`<section aria-labelledby="change"><h2 id="change">Change</h2>
    <label for="policy-file">Policy file (JSON)</label>
    <textarea id="policy-file" spellcheck="false" rows="14" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    <div class="filters"><label>Reason <input id="policy-reason" maxlength="400" value=${reason} onInput=${(event) => setReason(event.target.value)} /></label></div>
    <${Trouble} problem=${problem} />
    <p class="actions"><button type="button" disabled=${busy} onClick=${check}>Check</button> <button type="button" disabled=${busy} onClick=${tryOut}>Try on futures</button>
      ${" "}<${Action} title="Apply" ask=${`The policy is put in force in the place of version ${current.version}. Jobs that run are moved only as its plans say.`} act=${apply} /></p>
    ${busy ? html`<p class="quiet" role="status">The server looks …</p>` : null}
    ${told && told.checked ? html`<div role="status"><p>It is a policy that this server can run.</p><${Differences} before=${current} after=${{ ...told.checked, version: 0 }} /></div>` : null}
    ${told && told.futures ? html`<${Difference} told=${told.futures} />` : null}</section>`;
}

function Versions({ current, can, again }) {
  const { data, problem } = useLoaded((signal) => get("/policy/versions", signal), `versions ${current.version}`);
  const [shown, setShown] = useState(null);
  if (!data) return problem ? html`<${Trouble} problem=${problem} />` : html`<${Loading} />`;
  const back = (version) => async () => {
    await put(written(version), { if_version: String(current.version), reason: `back to version ${version.version}` });
    again();
  };
  const columns = [{ title: "Version", right: true }, { title: "Policy" }, { title: "Since" }, { title: "By" }, { title: "Reason" }, { title: "" }];
  const rows = data.map((version) => [
    String(version.version),
    version.name,
    html`<time title=${exactly(version.changed_at)}>${instant(version.changed_at)}</time>`,
    version.changed_by,
    version.put_back ? `put back: ${version.put_back}` : version.reason || "–",
    version.version === current.version ? "in force" : html`<button aria-expanded=${shown === version.version} onClick=${() => setShown(shown === version.version ? null : version.version)}>Compare</button>
      ${can("admin") ? html` <${Action} title="Roll back" ask=${`Version ${version.version}, ${version.name}, is put in force again, as a new version.`} act=${back(version)} />` : null}`,
  ]);
  const other = data.find((version) => version.version === shown);
  return html`<section aria-labelledby="versions"><h2 id="versions">Versions</h2>
    <${Table} caption="Versions of the policy" columns=${columns} rows=${rows} />
    ${other ? html`<${Differences} before=${other} after=${current} />` : null}</section>`;
}

function PriceHistory({ overview }) {
  const history = overview ? overview.history : [];
  if (history.length < 2) return null;
  const pools = overview.pools.map((pool) => pool.pool);
  const data = [history.map((point) => point.at), ...pools.map((pool) => history.map((point) => point.prices[pool] ?? null))];
  const colours = pools.map((_, at) => `hsl(${Math.round(at * 137.5 + 210) % 360} 60% 50%)`);
  return html`<section aria-labelledby="prices"><h2 id="prices">Prices</h2><${Chart} data=${data} height=${180} series=${colours.map((stroke) => ({ stroke }))} label="Prices of the pools over time" />
    <p class="legend quiet">${pools.map((pool, at) => html`<span><i class="swatch" style=${{ background: colours[at] }}></i> ${pool} </span>`)}</p></section>`;
}

export function PolicyPage({ can }) {
  const [changed, setChanged] = useState(0);
  const { data, problem } = useLoaded((signal) => get("/policy", signal), `policy ${changed}`, 15);
  const overview = useOverview();
  const refresh = () => setChanged((before) => before + 1);
  if (!data) return html`<h1>Policy</h1>${problem ? html`<${Trouble} problem=${problem} />` : html`<${Loading} />`}`;
  const facts = (values) => html`<dl class="facts list">${Object.entries(values).map(([name, value]) => html`<div><dt>${name}</dt><dd>${typeof value === "object" ? JSON.stringify(value) : String(value)}</dd></div>`)}</dl>`;
  const certificate = overview && overview.certificate;
  return html`<h1>Policy <span class="name">${data.name}</span></h1>
    <p class="quiet">version ${data.version}, since <time title=${exactly(data.changed_at)}>${instant(data.changed_at)}</time>, by ${data.changed_by}</p>
    ${data.put_back ? html`<p class="trouble" role="alert">The policy before it was put back: ${data.put_back}</p>` : null}
    ${certificate ? html`<p>The last answer is at most ${percent(certificate.gap)} from the best possible one, found by ${certificate.path} at ${instant(certificate.solved_at)}${certificate.realised === undefined || certificate.realised === null ? "" : `; ${percent(certificate.realised)} of its bound was realised lately`}.</p>` : null}
    <${PriceHistory} overview=${overview} />
    ${Object.keys(data.parameters).length ? html`<section aria-labelledby="parameters"><h2 id="parameters">Parameters</h2>${facts(data.parameters)}</section>` : null}
    <section aria-labelledby="rules"><h2 id="rules">Rules</h2>
      ${data.changed_rules.length ? facts(Object.fromEntries(data.changed_rules.map((name) => [name, data.rules[name]]))) : html`<p class="quiet">All are at their defaults.</p>`}
      <details><summary>All rules</summary>${facts(data.rules)}</details></section>
    ${can("admin") ? html`<${Change} key=${data.version} current=${data} again=${refresh} />` : null}
    <${Versions} current=${data} can=${can} again=${refresh} />`;
}
