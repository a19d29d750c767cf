// Calls of the server, and the stream of overviews that all parts of the page share.

/** What the server said no with: `detail` for people, `field` and `fix` where it names them. */
export class Problem extends Error {
  constructor(status, told) {
    super(told.detail || told.title || `the server answered ${status}`);
    this.status = status;
    this.field = told.field || "";
    this.fix = told.fix || "";
  }
}

const API = "/api/v1";
const listeners = new Set();

/** Tells everybody who waits for it that nobody is signed in any more. */
function signedOut() {
  for (const listener of listeners) listener();
}

export function onSignedOut(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

async function refused(response) {
  const told = await response.json().catch(() => ({}));
  if (response.status === 401) signedOut();
  return new Problem(response.status, told);
}

function request(method, path, body, { type = "application/json", headers = {}, signal } = {}) {
  const sent = { "X-Walras-Page": "1", ...headers };
  if (body !== undefined) sent["Content-Type"] = type;
  const text = body === undefined ? undefined : type === "application/json" ? JSON.stringify(body) : body;
  return fetch(/^\/(web|content)\//.test(path) ? path : API + path, { method, headers: sent, body: text, signal, cache: "no-store" });
}

/** The JSON that the server answers with. Throws Problem. */
export async function call(method, path, body, options) {
  const response = await request(method, path, body, options);
  if (!response.ok) throw await refused(response);
  return response.status === 204 ? null : response.json();
}

/** The bytes that the server answers with. Throws Problem. */
export async function getBytes(path) {
  const response = await request("GET", path);
  if (!response.ok) throw await refused(response);
  return response.arrayBuffer();
}

export const get = (path, signal) => call("GET", path, undefined, { signal });

/** A log from its last bytes on, as it grows: `write(text)` is called with each piece until the attempt has ended. */
export async function followLog(path, write, signal) {
  const response = await request("GET", path, undefined, { signal });
  if (!response.ok) throw await refused(response);
  const reader = response.body.getReader();
  const decoder = new TextDecoder("utf-8", { fatal: false });
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    write(decoder.decode(value, { stream: true }));
  }
}

/** The overview as it was sent last, and those who draw it. */
class Live {
  constructor() {
    this.overview = null;
    this.state = "connecting";
    this.watchers = new Set();
    this.source = null;
  }

  watch(watcher) {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  }

  tell() {
    for (const watcher of this.watchers) watcher();
  }

  open() {
    if (this.source) return;
    const source = (this.source = new EventSource(`${API}/overview/events`));
    source.addEventListener("overview", (event) => {
      this.overview = { ...(this.overview || {}), ...JSON.parse(event.data) };
      this.state = "live";
      this.tell();
    });
    source.onerror = () => {
      this.state = "reconnecting";
      this.tell();
      if (source.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
      this.close();
      setTimeout(async () => {
        const session = await get("/web/session").catch(() => null);
        if (session && !session.signed_in) signedOut();
        else this.open();
      }, 3000);
    };
  }

  close() {
    if (this.source) this.source.close();
    this.source = null;
  }
}

export const live = new Live();
