// The log of one rank: its last bytes, then what is written as it is written. Everything in it is shown as text.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { followLog } from "./server.js";
import { Trouble } from "./parts.js";

const TAIL_BYTES = 262144;
// Characters that are kept: a page that is open for a week must not grow for a week.
const KEPT = 1 << 20;
// Escape sequences of terminals, which say nothing in a page.
const ESCAPES = /\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*(\x07|\x1b\\)|[@-_])/g;

function matching(text, search) {
  if (!search) return text;
  const wanted = search.toLowerCase();
  return text.split("\n").filter((line) => line.toLowerCase().includes(wanted)).join("\n");
}

export function Log({ job, attempts, ranks }) {
  const [attempt, setAttempt] = useState(0);
  const [rank, setRank] = useState(0);
  const [search, setSearch] = useState("");
  const [problem, setProblem] = useState(null);
  const [over, setOver] = useState(false);
  const [, draw] = useState(0);
  const text = useRef("");
  const view = useRef(null);
  const shown = attempt || attempts;
  useEffect(() => {
    const stop = new AbortController();
    let waiting = 0;
    text.current = "";
    setOver(false);
    setProblem(null);
    const add = (piece) => {
      text.current = (text.current + piece.replace(ESCAPES, "")).slice(-KEPT);
      waiting = waiting || setTimeout(() => { waiting = 0; draw((times) => times + 1); }, 100);
    };
    followLog(`/jobs/${job}/logs?attempt=${shown}&rank=${rank}&tail=${TAIL_BYTES}&follow=true`, add, stop.signal)
      .then(() => setOver(true))
      .catch((error) => stop.signal.aborted || setProblem(error));
    return () => {
      stop.abort();
      clearTimeout(waiting);
    };
  }, [job, shown, rank]);
  const found = matching(text.current, search);
  useEffect(() => {
    const box = view.current;
    if (box && box.dataset.reads !== "above") box.scrollTop = box.scrollHeight;
  });
  const onScroll = (event) => {
    const box = event.target;
    box.dataset.reads = box.scrollHeight - box.scrollTop - box.clientHeight > 40 ? "above" : "";
  };
  const numbers = (many) => Array.from({ length: Math.max(1, many) }, (_, at) => at);
  return html`<section aria-labelledby="log"><h2 id="log">Log</h2>
    <form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <label>Attempt <select onChange=${(event) => setAttempt(Number(event.target.value))}>${numbers(attempts).map((at) => html`<option value=${at + 1} selected=${at + 1 === shown}>${at + 1}</option>`)}</select></label>
      <label>Rank <select onChange=${(event) => setRank(Number(event.target.value))}>${numbers(ranks).map((at) => html`<option value=${at} selected=${at === rank}>${at}</option>`)}</select></label>
      <label>Search <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>
      <span class="quiet" role="status">${over ? "ended" : "following"}</span></form>
    <${Trouble} problem=${problem} />
    <pre class="log" tabindex="0" role="log" aria-live="off" aria-label=${`Log of rank ${rank}`} ref=${view} onScroll=${onScroll}>${found || (over ? "Nothing was written." : "Nothing was written yet.")}</pre></section>`;
}
