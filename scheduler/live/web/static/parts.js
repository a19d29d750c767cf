// Parts that several pages are made of.

import { Component, html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { live } from "./server.js";

/** Draws again whenever the overview changes; returns it (null until the first has come). */
export function useOverview() {
  const [, draw] = useState(0);
  useEffect(() => {
    const look = () => draw((times) => times + 1);
    const stop = live.watch(look);
    look(); // it may have come between the first drawing and now
    return stop;
  }, []);
  return live.overview;
}

/** What `load(signal)` returns, loaded again every `everyS` seconds while the page is visible, and at once on `again`. */
export function useLoaded(load, key, everyS = 0) {
  const [found, setFound] = useState({ data: null, problem: null });
  const [times, again] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const look = async () => {
      if (!document.hidden) {
        try {
          const data = await load(stop.signal);
          if (!stop.signal.aborted) setFound({ data, problem: null });
        } catch (problem) {
          if (!stop.signal.aborted) setFound((before) => ({ data: before.data, problem }));
        }
      }
      if (everyS && !stop.signal.aborted) timer = setTimeout(look, 1000 * everyS);
    };
    look();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key, times, everyS]);
  return { ...found, again: () => again((before) => before + 1) };
}

export const State = ({ state }) => html`<span class="state ${state.toLowerCase()}">${state.toLowerCase()}</span>`;

export const JobLink = ({ id, name }) =>
  html`<a href="#/jobs/${id}"><span class="number">${id}</span>${name ? html` <span class="name">${name}</span>` : null}</a>`;

export function Trouble({ problem }) {
  if (!problem) return null;
  return html`<p class="trouble" role="alert">${problem.field ? html`<code>${problem.field}</code>${": "}` : null}${problem.message}
    ${problem.fix ? html`<span class="fix">To change this: ${problem.fix}</span>` : null}</p>`;
}

export const Loading = () => html`<p class="quiet" role="status">Loading …</p>`;

/** `columns`: [{ title, right, sort }]; `rows`: arrays of cells; `cards`: on a phone each row stands for itself. */
export function Table({ columns, rows, caption, sort, onSort, cards }) {
  const head = (column) => {
    if (!column.title) return html`<td></td>`;
    const isSorted = sort && column.sort && sort.replace("-", "") === column.sort;
    const order = isSorted ? (sort.startsWith("-") ? "descending" : "ascending") : "none";
    return html`<th scope="col" class=${column.right ? "right" : ""} aria-sort=${column.sort ? order : undefined}>
      ${column.sort && onSort
        ? html`<button class="plain" onClick=${() => onSort(isSorted && order === "descending" ? column.sort : `-${column.sort}`)}>
            ${column.title}${isSorted ? (order === "descending" ? " ↓" : " ↑") : ""}</button>`
        : column.title}</th>`;
  };
  return html`<div class=${cards ? "scrolls cards" : "scrolls"} tabindex="0" role="region" aria-label=${`Table: ${caption}`}><table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map(head)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((cell, at) => html`<td class=${columns[at].right ? "right" : ""} data-title=${columns[at].title || undefined}>${cell}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** Hands a Blob to the browser as a file. */
export function save(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** A line chart of one or more series: `data` is uPlot's. */
export class Chart extends Component {
  componentDidMount() {
    this.draw();
    this.resize = new ResizeObserver(() => this.plot && this.plot.setSize(this.size()));
    this.resize.observe(this.base);
  }

  componentDidUpdate(before) {
    if (before.data === this.props.data) return;
    if (this.plot && this.plot.series.length === this.props.data.length) this.plot.setData(this.props.data);
    else this.draw();
  }

  componentWillUnmount() {
    this.resize.disconnect();
    if (this.plot) this.plot.destroy();
  }

  size() {
    return { width: Math.max(120, this.base.clientWidth), height: this.props.height || 140 };
  }

  draw() {
    if (this.plot) this.plot.destroy();
    const style = getComputedStyle(document.documentElement);
    const grid = { stroke: style.getPropertyValue("--line"), width: 1 };
    const axis = { stroke: style.getPropertyValue("--quiet"), grid, ticks: { show: false }, font: "11px system-ui", size: 34 };
    const series = (this.props.series || []).map((each) => ({ points: { show: false }, width: 1.5, ...each }));
    this.plot = new window.uPlot(
      {
        ...this.size(),
        legend: { show: false },
        cursor: { show: false },
        padding: this.props.bare ? [4, 0, 2, 0] : [8, 8, 0, 0],
        scales: { x: { time: !this.props.steps }, y: { range: (_, low, high) => [Math.min(0, low || 0), (high || 1) * 1.1] } },
        axes: this.props.bare ? [{ show: false }, { show: false }] : [axis, { ...axis, size: 46 }],
        series: [{}, ...series],
      },
      this.props.data,
      this.base,
    );
  }

  render({ label }) {
    return html`<div class="chart" role="img" aria-label=${label}></div>`;
  }
}

/** A button that asks before it does what cannot be taken back. `act` may throw a Problem. */
export function Action({ title, ask, act, onDone, danger }) {
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const dialog = useRef(null);
  const go = async () => {
    setBusy(true);
    try {
      await act();
      setProblem(null);
      if (onDone) onDone();
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
  };
  return html`<span class="action">
    <button class=${danger ? "danger" : ""} disabled=${busy} onClick=${() => (ask ? dialog.current.showModal() : go())}>${title}</button>
    ${ask ? html`<dialog ref=${dialog} aria-label=${title}><p>${ask}</p><form method="dialog">
      <button onClick=${go} class="danger">${title}</button> <button autofocus>Leave it</button></form></dialog>` : null}
    <${Trouble} problem=${problem} /></span>`;
}

/** A form whose fields go to `send(values)`; its problem is shown below it. */
export function Form({ title, send, children }) {
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const [times, setTimes] = useState(0);
  const submit = async (event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(event.target));
    setBusy(true);
    try {
      await send(values);
      setProblem(null);
      setTimes(times + 1);
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
  };
  return html`<form class="filters" key=${times} onSubmit=${submit}>${children}<button disabled=${busy}>${title}</button></form><${Trouble} problem=${problem} />`;
}
