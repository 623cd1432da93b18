// Starts the page: who is signed in, which models there are, and which of the views is seen.
import { models, signIn, signOut, who } from "./api.js";
import { generates, showCards } from "./catalogue.js";
import { byId, make } from "./dom.js";
import { Playground } from "./playground.js";

const VIEWS = ["playground", "models"];
const REFRESH_MS = 15000;
// What a link of `neo chat` says; taken out of the address at once, as its code works only once.
const link = new URLSearchParams(location.hash.slice(1));
if (link.has("code") || link.has("model")) history.replaceState(null, "", location.pathname);

let account = null; // {name, projects, home_project}

const playground = new Playground({
  project: () => (byId("project-choice").hidden ? "" : byId("project").value),
  refresh,
  signedOut: () => showSignIn("Your session has expired. Sign in again; the conversation is kept."),
});

byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = byId("key").value;
  byId("key").value = "";
  await enter(() => signIn({ key }));
});
byId("sign-out").addEventListener("click", async () => {
  await signOut();
  location.reload(); // nothing of the conversation is left behind
});
addEventListener("hashchange", showView);
setInterval(() => { if (account && !document.hidden) refresh(); }, REFRESH_MS);

await enter(() => (link.has("code") ? signIn({ code: link.get("code") }) : who()), !link.has("code"));

// isFirstLook: being signed out is no mistake then.
async function enter(find, isFirstLook = false) {
  try {
    account = await find();
    showAccount();
    await refresh();
  } catch (error) {
    showSignIn(isFirstLook && error.status === 401 ? "" : error.message);
  }
}

async function refresh() {
  try {
    const [found] = await Promise.all([models(), playground.documents.refresh(playground.account.project())]);
    playground.offer(found.filter(generates), link.get("model"), link.get("compare"));
    showCards(byId("cards"), found, {
      play: (name) => go(name),
      compare: (tuned, base) => go(base, tuned),
    });
  } catch (error) {
    if (error.status === 401) showSignIn(error.message);
  }
}

function go(...names) {
  playground.choose(...names);
  location.hash = "playground";
  showView(); // now, as what is not seen takes no focus
  playground.focus();
}

function showAccount() {
  const { name, projects, home_project: home } = account;
  byId("who").textContent = name;
  byId("project").replaceChildren(...projects.map((id) => make("option", { value: id, textContent: id })));
  byId("project-choice").hidden = Boolean(home) || projects.length < 2;
  byId("bar").hidden = false;
  byId("sign-in").hidden = true;
  showView();
  playground.focus();
}

function showView() {
  if (!account) return;
  const wanted = VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : VIEWS[0];
  for (const view of VIEWS) {
    byId(view).hidden = view !== wanted;
    const place = byId(`to-${view}`);
    if (view === wanted) place.setAttribute("aria-current", "page");
    else place.removeAttribute("aria-current");
  }
  document.title = `${wanted === "models" ? "Models" : "Playground"} · Neocloud`;
}

function showSignIn(problem) {
  account = null;
  for (const id of ["bar", ...VIEWS]) byId(id).hidden = true;
  byId("sign-in").hidden = false;
  byId("sign-in-problem").textContent = problem;
  byId("sign-in-problem").hidden = !problem;
  byId("key").focus();
}
