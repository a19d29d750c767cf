// One machine: its devices as they were last seen, and what ran on it.

import { html } from "./vendor/preact-htm.js";
import { get } from "./server.js";
import { JobLink, Loading, State, Table, Trouble, useLoaded } from "./parts.js";
import { count, exactly, figure, instant, length } from "./words.js";

const GIB = 2 ** 30;
const asDate = (seconds) => new Date(1000 * seconds).toISOString();
const known = (value, unit, digits = 0) => (value === null || value === undefined ? "–" : `${value.toFixed(digits)}${unit}`);
const memory = (device) => (device.memory_used_bytes === null || device.memory_bytes === null ? "–" : `${figure(device.memory_used_bytes / GIB)} of ${figure(device.memory_bytes / GIB)} GiB`);

/** How busy its accelerators are and how hot the hottest is, in a few words; nothing where no device is measured. */
export function inShort(devices) {
  const busy = devices.map((device) => device.utilization).filter((value) => value !== null);
  const hot = devices.map((device) => device.temperature_c).filter((value) => value !== null);
  const mean = busy.length ? `${Math.round(busy.reduce((sum, value) => sum + value, 0) / busy.length)} % busy` : "";
  return [mean, hot.length ? `${Math.round(Math.max(...hot))} °C` : ""].filter(Boolean).join(", ");
}

export function Devices({ devices }) {
  const columns = [{ title: "Device", right: true }, { title: "Utilisation", right: true }, { title: "Memory", right: true }, { title: "Temperature", right: true }, { title: "Power", right: true }];
  const rows = devices.map((device) => [String(device.device), known(device.utilization, " %"), memory(device), known(device.temperature_c, " °C"), known(device.power_w, " W")]);
  return html`<section aria-labelledby="devices"><h2 id="devices">Devices</h2>
    ${rows.length ? html`<${Table} caption="Devices" columns=${columns} rows=${rows} />` : html`<p class="quiet">Its agent measures no device.</p>`}</section>`;
}

const instantOf = (seconds) => (seconds === null ? "–" : html`<time title=${exactly(asDate(seconds))}>${instant(asDate(seconds))}</time>`);

export function MachineHistory({ name }) {
  const { data, problem } = useLoaded((signal) => get(`/nodes/${encodeURIComponent(name)}/history?limit=100`, signal), `history ${name}`, 15);
  const columns = [{ title: "Job" }, { title: "Attempt", right: true }, { title: "Project, user" }, { title: "State" }, { title: "Accelerators", right: true }, { title: "From" }, { title: "To" }, { title: "For", right: true }];
  const rows = (data || []).map((row) => [
    html`<${JobLink} id=${row.job} name=${row.name} />`,
    String(row.attempt),
    html`${row.project} <span class="quiet">${row.user}</span>`,
    html`<${State} state=${row.state} />${row.reason ? html` <span class="quiet">${row.reason}</span>` : null}`,
    count(row.accelerators),
    instantOf(row.leased_at),
    instantOf(row.ended_at),
    length((row.ended_at === null ? Date.now() / 1000 : row.ended_at) - row.leased_at),
  ]);
  return html`<section aria-labelledby="ran"><h2 id="ran">What ran here</h2><${Trouble} problem=${problem} />
    ${data ? (rows.length ? html`<${Table} caption="What ran here" columns=${columns} rows=${rows} />` : html`<p class="quiet">No job of your projects has run here.</p>`) : html`<${Loading} />`}</section>`;
}
