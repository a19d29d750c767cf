// Users, projects and tokens: who may do what, who has which token, and how these are changed.

import { html, useState } from "./vendor/preact-htm.js";
import { call, get } from "./server.js";
import { Action, Form, Loading, Table, Trouble, useLoaded } from "./parts.js";
import { exactly, figure, instant, percent } from "./words.js";

const ROLES = ["viewer", "user", "operator", "admin"];

const words = (text) => text.split(",").map((each) => each.trim()).filter(Boolean);

const roleOptions = (chosen) => ROLES.map((role) => html`<option value=${role} selected=${role === chosen}>${role}</option>`);

function Users({ users, again }) {
  const [changed, setChanged] = useState("");
  const columns = [{ title: "User" }, { title: "Role" }, { title: "Projects" }, { title: "Tokens", right: true }, { title: "Changed" }, { title: "" }];
  const here = users.filter((user) => !user.removed);
  const path = (user) => `/users/${encodeURIComponent(user.name)}`;
  const rows = here.map((user) => [
    html`<span class="name">${user.name}</span>`,
    user.role,
    user.projects.join(", "),
    figure(user.tokens),
    user.changed_at ? html`<time title=${exactly(user.changed_at)}>${instant(user.changed_at)}</time> by ${user.changed_by}` : "–",
    html`<button aria-expanded=${changed === user.name} onClick=${() => setChanged(changed === user.name ? "" : user.name)}>Change</button>
      ${" "}<${Action} title="Remove" ask=${`The tokens of ${user.name} open nothing from then on. What ${user.name} submitted runs on.`} act=${async () => { await call("DELETE", path(user)); again(); }} />`,
  ]);
  const chosen = here.find((user) => user.name === changed);
  const change = async ({ role, projects }) => {
    await call("PATCH", path(chosen), { role, projects: words(projects) });
    setChanged("");
    again();
  };
  const add = async ({ name, role, projects }) => {
    await call("POST", "/users", { name: name.trim(), settings: { role, projects: words(projects) } });
    again();
  };
  const fields = (user) => html`<label>Role <select name="role">${roleOptions(user.role)}</select></label>
    <label>Projects <input name="projects" required value=${user.projects.join(", ")} /></label>`;
  return html`<section aria-labelledby="users"><h2 id="users">Users</h2>
    <${Table} caption="Users" columns=${columns} rows=${rows} />
    ${chosen ? html`<${Form} key=${chosen.name} title=${`Change ${chosen.name}`} send=${change}>${fields(chosen)}<//>` : null}
    <${Form} title="Add a user" send=${add}><label>Name <input name="name" required maxlength="100" /></label>${fields({ role: "user", projects: ["default"] })}<//></section>`;
}

const limitsOf = (limits) => Object.entries(limits).map(([what, most]) => `${most} of ${what}`).join(", ") || "–";

function Projects({ projects, again }) {
  const [changed, setChanged] = useState("");
  const columns = [{ title: "Project" }, { title: "Weight", right: true }, { title: "Guaranteed", right: true }, { title: "Holds at most" }, { title: "Highest priority", right: true }, { title: "Users" }, { title: "" }];
  const path = (project) => `/projects/${encodeURIComponent(project.name)}`;
  const rows = projects.map((project) => [
    html`<span class="name">${project.name}</span>`,
    figure(project.share.weight),
    percent(project.share.guaranteed),
    limitsOf(project.share.limits),
    project.caps.max_priority === null ? "–" : figure(project.caps.max_priority),
    project.members.join(", ") || "–",
    html`<button aria-expanded=${changed === project.name} onClick=${() => setChanged(changed === project.name ? "" : project.name)}>Change</button>
      ${" "}<${Action} title="Forget" ask=${`Its weight, limits and caps are forgotten. A project that somebody has, or that has jobs, stays.`} act=${async () => { await call("DELETE", path(project)); again(); }} />`,
  ]);
  const chosen = projects.find((project) => project.name === changed);
  const change = async ({ weight, guaranteed, fleet }) => {
    const limits = { fleet: fleet === "" ? null : Number(fleet) };
    await call("PATCH", path(chosen), { share: { weight: Number(weight), guaranteed: Number(guaranteed) / 100, limits } });
    setChanged("");
    again();
  };
  const add = async ({ name }) => {
    await call("POST", "/projects", { name: name.trim(), settings: {} });
    again();
  };
  const number = (name, title, value, most) => html`<label>${title} <input type="number" name=${name} min="0" max=${most} step="any" value=${value} /></label>`;
  return html`<section aria-labelledby="projects"><h2 id="projects">Projects</h2>
    <${Table} caption="Projects" columns=${columns} rows=${rows} />
    ${chosen ? html`<${Form} key=${chosen.name} title=${`Change ${chosen.name}`} send=${change}>
      ${number("weight", "Weight", chosen.share.weight, 1000000)}${number("guaranteed", "Guaranteed, %", 100 * chosen.share.guaranteed, 100)}
      ${number("fleet", "Accelerators at most", chosen.share.limits.fleet ?? "", 10000000)}<//>` : null}
    <${Form} title="Add a project" send=${add}><label>Name <input name="name" required maxlength="100" /></label><//></section>`;
}

function Tokens({ tokens, again }) {
  const [made, setMade] = useState(null);
  const columns = [{ title: "Begins with" }, { title: "User" }, { title: "Role" }, { title: "Projects" }, { title: "Made by" }, { title: "" }];
  const rows = tokens.map((token) => [
    html`<code>${token.prefix}…</code>`,
    token.user,
    token.role,
    token.projects.join(", "),
    token.created_by,
    token.is_expired_or_revoked ? html`<span class="quiet">opens nothing</span>` : html`<${Action} title="Revoke" ask=${`Whoever uses this token of ${token.user} is signed out at once.`} act=${async () => { await call("DELETE", `/tokens/${encodeURIComponent(token.prefix)}`); again(); }} />`,
  ]);
  const make = async ({ user, role, projects, days }) => {
    const expires = days === "" ? {} : { expires_in_s: 86400 * Number(days) };
    setMade(await call("POST", "/tokens", { user: user.trim(), role, projects: words(projects), ...expires }));
    again();
  };
  return html`<section aria-labelledby="tokens"><h2 id="tokens">Tokens</h2>
    <${Table} caption="Tokens" columns=${columns} rows=${rows} />
    <${Form} title="Make a token" send=${make}><label>User <input name="user" required maxlength="100" /></label>
      <label>Role <select name="role">${roleOptions("user")}</select></label><label>Projects <input name="projects" required value="default" /></label>
      <label>Days <input type="number" name="days" min="1" max="10000" /></label><//>
    ${made ? html`<div role="status"><p>The token of ${made.user}; it is shown this once:</p><pre class="spec" id="made-token">${made.token}</pre></div>` : null}</section>`;
}

export function PeoplePage() {
  const load = async (signal) => {
    const [users, projects, tokens] = await Promise.all([get("/users", signal), get("/projects", signal), get("/tokens", signal)]);
    return { users, projects, tokens: tokens.items };
  };
  const { data, problem, again } = useLoaded(load, "people", 30);
  return html`<h1>People</h1><${Trouble} problem=${problem} />
    ${data ? html`<${Users} users=${data.users} again=${again} /><${Projects} projects=${data.projects} again=${again} /><${Tokens} tokens=${data.tokens} again=${again} />` : html`<${Loading} />`}`;
}
