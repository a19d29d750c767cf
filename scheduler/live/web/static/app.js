// The frame of the page: who is signed in, which page is open, whether what is shown is live.

import { html, render, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { call, get, live, onSignedOut } from "./server.js";
import { Trouble, useOverview } from "./parts.js";
import { FleetPage } from "./fleet.js";
import { JobsPage } from "./jobs.js";
import { JobPage } from "./job.js";
import { SubmitPage } from "./submit.js";
import { AuditPage, MachinesPage, MoneyPage } from "./cluster.js";
import { WhatIfPage } from "./futures.js";
import { PeoplePage } from "./people.js";
import { PolicyPage } from "./policy.js";
import { ReportPage } from "./report.js";
import { SharesPage } from "./shares.js";

const RANK = { viewer: 1, user: 2, operator: 3, admin: 4 };
// The tabs; one with several pages names them below itself.
const TABS = [
  { title: "Fleet", pages: [{ path: "", title: "Fleet", page: FleetPage }] },
  { title: "Jobs", pages: [{ path: "jobs", title: "Jobs", page: JobsPage }] },
  { title: "Submit", pages: [{ path: "submit", title: "Submit", page: SubmitPage, role: "user" }] },
  { title: "Cluster", pages: [
    { path: "machines", title: "Machines", page: MachinesPage },
    { path: "money", title: "Money", page: MoneyPage },
    { path: "shares", title: "Shares", page: SharesPage },
    { path: "whatif", title: "What if", page: WhatIfPage, role: "user" },
    { path: "policy", title: "Policy", page: PolicyPage },
    { path: "report", title: "Report", page: ReportPage },
  ] },
  { title: "Admin", pages: [
    { path: "people", title: "People", page: PeoplePage, role: "operator" },
    { path: "audit", title: "Audit", page: AuditPage, role: "operator" },
  ] },
];

/** "#/jobs/12?rank=1" -> ["jobs", "12"]. */
function place(hash) {
  return hash.replace(/^#\/?/, "").split("?")[0].split("/").map(decodeURIComponent);
}

function usePlace() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const look = () => setHash(location.hash);
    addEventListener("hashchange", look);
    look(); // it may have changed between the first drawing and now
    return () => removeEventListener("hashchange", look);
  }, []);
  return place(hash);
}

const base64url = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

/** Sends the user to the provider; what is kept here makes the code that comes back useless to anybody else. */
async function signOn(facts) {
  const kept = { state: random(), nonce: random(), verifier: random(), redirect_uri: `${location.origin}/` };
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(kept.verifier)));
  sessionStorage.setItem("sign-on", JSON.stringify(kept));
  const query = { response_type: "code", client_id: facts.client_id, scope: facts.scope, redirect_uri: kept.redirect_uri, state: kept.state, nonce: kept.nonce, code_challenge: base64url(digest), code_challenge_method: "S256" };
  location.assign(`${facts.authorization_endpoint}?${new URLSearchParams(query)}`);
}

/** Hands over the code of a user who comes back from the provider. Throws Problem. */
async function signedOn() {
  const came = new URLSearchParams(location.search);
  if (!came.get("state")) return;
  const { state, ...kept } = JSON.parse(sessionStorage.getItem("sign-on") || "{}");
  sessionStorage.removeItem("sign-on");
  history.replaceState(null, "", "/");
  if (came.get("state") !== state || !came.get("code")) throw new Error(`Not signed in: ${came.get("error") || "this answers another sign-in"}.`);
  await call("POST", "/web/sign-on", { code: came.get("code"), ...kept });
}

function SignIn({ onDone, failed }) {
  const [problem, setProblem] = useState(failed);
  const [facts, setFacts] = useState({});
  useEffect(() => { get("/web/sign-on").then(setFacts).catch(setProblem); }, []);
  const send = async (event) => {
    event.preventDefault();
    const token = new FormData(event.target).get("token").trim();
    try {
      await call("POST", "/web/session", { token });
      onDone();
    } catch (error) {
      setProblem(error.status === 401 ? new Error("That is no valid token of a user.") : error);
    }
  };
  return html`<main class="signin"><h1>Walras</h1>
    <form onSubmit=${send}>
      <input class="hidden" name="username" autocomplete="username" value="walras" tabindex="-1" aria-hidden="true" readonly />
      <label for="token">Token</label>
      <input id="token" name="token" type="password" autocomplete="current-password" required autofocus />
      <p class="quiet">The file <code>admin.token</code> in the server's folder holds one; an administrator makes others with
        ${" "}<code>walras admin add token NAME</code>. This browser stays signed in for twelve hours.</p>
      <p class="actions"><button class="first">Sign in</button>
        ${facts.client_id ? html`<button type="button" onClick=${() => signOn(facts).catch(setProblem)}>Sign in with single sign-on</button>` : null}</p>
      <${Trouble} problem=${problem} />
    </form></main>`;
}

function ThemeButton() {
  const [theme, setTheme] = useState(localStorage.getItem("theme") || "");
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    localStorage.setItem("theme", theme);
  }, [theme]);
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  return html`<button class="plain" onClick=${() => setTheme(dark ? "light" : "dark")}
    aria-label=${dark ? "Use light colours" : "Use dark colours"}>${dark ? "☀" : "☾"}</button>`;
}

function LiveMark() {
  const overview = useOverview();
  return html`<span class="live ${live.state}" role="status">${live.state}${overview && overview.policy ? html`<span class="quiet"> · ${overview.policy}</span>` : null}</span>`;
}

function Frame({ user, onSignOut }) {
  const [first, ...rest] = usePlace();
  const main = useRef(null);
  const tabs = TABS.map((tab) => ({ ...tab, pages: tab.pages.filter((each) => !each.role || RANK[user.role] >= RANK[each.role]) })).filter((tab) => tab.pages.length);
  const tab = tabs.find((each) => each.pages.some((page) => page.path === first)) || tabs[0];
  const found = tab.pages.find((each) => each.path === first) || tab.pages[0];
  const links = (pages, label, current) => html`<nav aria-label=${label}>${pages.map((each) => html`<a href="#/${each.path}" aria-current=${each.path === current ? "page" : undefined}>${each.title}</a>`)}</nav>`;
  const Page = first === "jobs" && rest[0] ? JobPage : found.page;
  useEffect(() => {
    document.title = rest[0] ? `${found.title} ${rest[0]} · Walras` : `${found.title} · Walras`;
    main.current.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [first, rest[0]]);
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>To the content</a>
    <header><a class="brand" href="#/">Walras</a>
      ${links(tabs.map((each) => ({ title: each.title, path: each.pages[0].path })), "Pages", tab.pages[0].path)}
      <span class="who"><${LiveMark} /><span class="user" title=${`role ${user.role}, projects ${user.projects.join(", ")}`}>${user.user}</span>
        <${ThemeButton} /><button class="plain" onClick=${onSignOut}>Sign out</button></span></header>
    <main id="main" tabindex="-1" ref=${main}>${tab.pages.length > 1 ? html`<div class="parts">${links(tab.pages, tab.title, found.path)}</div>` : null}<${Page} key=${found.path + (rest[0] || "")} user=${user} can=${(role) => RANK[user.role] >= RANK[role]} rest=${rest} /></main>`;
}

function App() {
  const [user, setUser] = useState(undefined);
  const [failed, setFailed] = useState(null);
  const look = async () => {
    await signedOn().catch(setFailed);
    const session = await call("GET", "/web/session").catch(() => ({ signed_in: false }));
    if (session.signed_in) live.open(); // before anything is drawn: the server makes the overview meanwhile
    setUser(session.user || null);
  };
  useEffect(() => {
    look();
    return onSignedOut(() => { live.close(); setUser(null); });
  }, []);
  useEffect(() => {
    if (user) live.open();
  }, [user]);
  const signOut = async () => {
    await call("DELETE", "/web/session").catch(() => null);
    live.close();
    live.overview = null;
    setUser(null);
  };
  if (user === undefined) return null;
  return user === null ? html`<${SignIn} onDone=${look} failed=${failed} />` : html`<${Frame} user=${user} onSignOut=${signOut} />`;
}

const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset.theme = theme;
render(html`<${App} />`, document.getElementById("app"));
