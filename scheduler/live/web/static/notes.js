// Notes on a job: what people wrote about it, and a form for another one.

import { html } from "./vendor/preact-htm.js";
import { call, get } from "./server.js";
import { Action, Form, Trouble, useLoaded } from "./parts.js";
import { exactly, instant } from "./words.js";

const LONGEST = 2000;

function Note({ note, may, again }) {
  const remove = () => call("DELETE", `/jobs/${note.job_id}/notes/${note.id}`);
  return html`<li><div class="quiet"><b class="name">${note.user}</b>, <time title=${exactly(note.at)}>${instant(note.at)}</time>
      ${may ? html` <${Action} title="Remove" named=${`Remove note ${note.id}`} ask=${`The note of ${note.user} is deleted for all.`} act=${remove} onDone=${again} />` : null}</div>
    <p class="text">${note.text}</p></li>`;
}

/** `may`: whether the user writes on this job. */
export function Notes({ job, may }) {
  const path = `/jobs/${encodeURIComponent(job)}/notes`;
  const { data, problem, again } = useLoaded((signal) => get(path, signal), `notes ${job}`, 15);
  if (!data) return html`<${Trouble} problem=${problem} />`;
  if (!data.length && !may) return null;
  const add = async ({ text }) => {
    await call("POST", path, { text });
    again();
  };
  return html`<section aria-labelledby="notes"><h2 id="notes">Notes</h2><${Trouble} problem=${problem} />
    ${data.length ? html`<ul class="notes">${data.map((note) => html`<${Note} key=${note.id} note=${note} may=${may} again=${again} />`)}</ul>` : null}
    ${may ? html`<${Form} title="Add a note" send=${add}><label class="wide" for="note-text">A note for all who see the job</label>
      <textarea id="note-text" name="text" rows="2" required maxlength=${LONGEST}></textarea><//>` : null}</section>`;
}
