// The page: one conversation with an agent, its settings, and the list of other conversations.

import { enter, get, post, ServerError, store, stored } from "./api.js";
import { Composer } from "./composer.js";
import { $, element, thousands } from "./dom.js";
import { Sidebar } from "./sidebar.js";
import { tokensOf, Turn } from "./turn.js";

const OPEN = "remoteclaw-sync-conversation";
const THEME = "remoteclaw-sync-theme";
const NEAR = 80;  // Pixels from the end within which the page keeps following it.
const MODES = { default: "ask first", "read-only": "read only", "accept-edits": "accept edits", bypass: "allow all" };
const TITLE = document.title;

let settings = null;
let conversation = null;  // The id of the conversation shown; null: it has not begun.
let turns = [];
let current = null;  // The running turn.
let isAtEnd = true;

// --- what the page says ---------------------------------------------------------------------------------------------

function announce(text) {
  $("status").textContent = "";
  $("status").textContent = text;
}
function complain(text) {
  $("log").append(element("p", "error", text));
  announce(text);
  grew();
}
function retitle() {
  const mark = current?.openCard || sidebar.asking.length ? "❓ " : current ? "● " : "";
  const title = `${mark}${TITLE}`;
  if (document.title !== title) document.title = title;
}

// --- scrolling ------------------------------------------------------------------------------------------------------

let top = 0;
let hasNews = false;  // Whether there is new output below what is in sight.
function grew() {
  if (isAtEnd) $("main").scrollTop = $("main").scrollHeight;
  else hasNews = true;
  point();
  retitle();
}
// Shows the button that leads down, if there is something to see.
function point() {
  if (isAtEnd) hasNews = false;
  const asks = Boolean(current?.openCard);
  $("latest").hidden = isAtEnd || !(hasNews || asks);
  $("latest").textContent = asks ? "↓ The agent asks you" : "↓ Latest";
  $("latest").classList.toggle("asks", asks);
}
function goDown() {
  isAtEnd = true;
  grew();
}
$("main").addEventListener("scroll", () => {
  const main = $("main");
  if (main.scrollHeight - main.scrollTop - main.clientHeight < NEAR) isAtEnd = true;
  else if (main.scrollTop < top) isAtEnd = false;  // Scrolled up to read. Growing text moves nothing up.
  top = main.scrollTop;
  point();
}, { passive: true });
// Parts that come into sight get their real heights, and phones show keyboards.
const heights = new ResizeObserver(() => { if (isAtEnd) grew(); });
for (const id of ["main", "log"]) heights.observe($(id));
$("latest").addEventListener("click", goDown);

// --- settings -------------------------------------------------------------------------------------------------------

function chosen() {
  return { provider: $("provider").value, model: $("model").value.trim() || null, permission_mode: $("mode").value };
}
function choose({ provider, model, permission_mode: mode }) {
  $("provider").value = provider;
  $("model").value = model ?? "";
  $("mode").value = mode;
  $("mode").classList.toggle("danger", mode === "bypass");
}
async function changed() {
  $("mode").classList.toggle("danger", $("mode").value === "bypass");
  const model = $("model").value.trim();
  if (model && ![...$("models").options].some((option) => option.value === model)) {
    const option = element("option");
    option.value = model;
    $("models").append(option);
  }
  if (conversation === null) return;
  try {
    await post(`/api/conversations/${conversation}/settings`, chosen());
    announce("The settings are changed.");
  } catch (error) {
    complain(`The settings are not changed: ${error.message}`);
  }
}
for (const id of ["provider", "model", "mode"]) $(id).addEventListener("change", changed);

function offer() {
  for (const one of settings.providers) {
    const option = element("option", "", one.installed ? one.name : `${one.name} (not installed)`);
    option.value = one.name;
    option.disabled = !one.installed;
    $("provider").append(option);
  }
  for (const mode of settings.permission_modes) {
    const option = element("option", "", MODES[mode] ?? mode);
    option.value = mode;
    $("mode").append(option);
  }
  choose(settings);
  $("folder").textContent = settings.folder;
}

// --- turns ----------------------------------------------------------------------------------------------------------

const page = {
  grew,
  asked(card) {
    announce(`${card.box.querySelector("h3").textContent} Press Alt+Y to allow it, Alt+N to deny it.`);
    grew();
  },
};

function busy(turn) {
  current = turn;
  for (const id of ["stop", "queue"]) $(id).hidden = !turn;
  $("stop").disabled = false;
  $("provider").disabled = Boolean(turn);
  $("send").textContent = turn ? "Send now" : "Send";
  $("send").title = turn ? "The agent takes it in while it works" : "";
  retitle();
}

function addTurn(asked) {
  const before = turns.at(-1)?.asked.provider;
  if (before && before !== asked.provider)
    $("log").append(element("p", "note", `From here on with ${asked.provider}, which knows only what was said to it.`));
  const turn = new Turn(asked, page);
  turns.push(turn);
  $("hint").hidden = true;
  $("log").append(turn.whole);
  return turn;
}

async function follow(turn) {
  busy(turn);
  await turn.follow();
  if (turn.isLeft) return;
  busy(null);
  totals();
  sidebar.refresh();
}

function totals() {
  const costs = turns.map((turn) => turn.result?.total_cost_usd ?? null).filter((cost) => cost !== null);
  const used = turns.filter((turn) => turn.result?.usage).map(({ asked, result, requests }) => {
    const tokens = tokensOf(result.usage, settings.cached_in_input.includes(asked.provider));
    return { tokens, context: tokens / requests };
  });
  const parts = [`${turns.length} ${turns.length === 1 ? "turn" : "turns"}`];
  if (used.length) parts.push(`${thousands(used.reduce((sum, { tokens }) => sum + tokens, 0))} tokens`);
  if (costs.length) parts.push(`$${costs.reduce((sum, cost) => sum + cost, 0).toFixed(4)}`);
  // How full the context is. Agents report what a turn has used; each of its requests has read the context once.
  if (used.length) parts.push(`context about ${thousands(Math.round(used.at(-1).context))}`);
  $("totals").textContent = turns.length ? `This conversation: ${parts.join(" · ")}` : "";
}

// --- sending --------------------------------------------------------------------------------------------------------

async function send(message, how) {
  const turn = current;
  if (!turn) return ask(message);
  if (how === "queue" || message.images.length || !turn.asked) return composer.enqueue(conversation, message);
  try {
    await turn.steer(message.prompt);
    announce("The agent was given your words.");
    grew();
  } catch (error) {
    // This agent takes no further words while it works, or it has just ended.
    if (current === turn) composer.enqueue(conversation, message);
    else if (error instanceof ServerError) ask(message);
    else composer.giveBack(message);
  }
}

async function ask(message) {
  busy({});
  isAtEnd = true;
  let shown = conversation;
  try {
    const started = await post("/api/runs", { ...message, ...chosen(), ...(shown && { conversation: shown }) });
    if (conversation !== shown) return;  // Another conversation was opened meanwhile.
    if (shown === null) {
      shown = started.conversation;
      composer.moveQueue(null, shown);  // Of what was written before the new conversation had a name.
      show(shown);
    }
    const asked = { ...message, provider: $("provider").value, run_id: started.run_id, further: [], answers: {}, tools: {} };
    const turn = addTurn(asked);
    grew();
    sidebar.refresh();
    announce("The agent is at work.");
    await follow(turn);
    if (!turn.isLeft) next(turn);
  } catch (error) {
    composer.giveBack(message);
    if (conversation === shown) {  // Otherwise another one is on the page, and its agent may be at work.
      busy(null);
      while (composer.of(conversation).length) composer.giveBack(composer.dequeue(conversation));
    }
    complain(`Not sent: ${error.message}`);
    sidebar.refresh();
  }
  $("prompt").focus();
}

// What was queued is sent after a turn that succeeded. After one that did not, it returns to the text field.
function next(turn) {
  const isWell = turn.result !== null && turn.result.error_subtype === null && !turn.result.aborted;
  announce(isWell ? "The agent has finished." : "The agent has ended.");
  if (isWell && composer.of(conversation).length) return void ask(composer.dequeue(conversation));
  while (composer.of(conversation).length) composer.giveBack(composer.dequeue(conversation));
}

async function stop() {
  if (!current?.asked) return;
  $("stop").disabled = true;
  try { await current.stop(); } catch { $("stop").disabled = false; }
}

// --- conversations --------------------------------------------------------------------------------------------------

function show(id) {
  conversation = id;
  if (id) store(OPEN, id);
  sidebar.select(id);
  composer.showQueue(id);
}

function leave() {
  for (const turn of turns) turn.leave();
  turns = [];
  busy(null);
  $("log").replaceChildren($("hint"));
  $("hint").hidden = false;
  isAtEnd = true;
  point();
  show(null);
  totals();
}

function fresh() {
  leave();
  store(OPEN, null);
  choose({ ...settings, ...chosen() });
  sidebar.toggle(false);
  $("prompt").focus();
}

// Everything about a conversation, with the starts of its turns by this page's clock.
async function details(id) {
  const sent = performance.now() / 1000;
  const found = await get(`/api/conversations/${id}`);
  for (const turn of found.turns) turn.since = sent - turn.age;
  return found;
}

async function open(id) {
  leave();
  let found;
  try {
    found = await details(id);
  } catch (error) {
    if (error.status === 404) return;
    throw error;
  }
  show(id);
  choose(found);
  await followAll(found.turns.map((asked) => addTurn(asked)));
}

async function followAll(mine) {
  for (const turn of mine) {
    await follow(turn);
    if (turn.isLeft) return;
  }
  if (mine.length && composer.of(conversation).length) next(mine.at(-1));
}

// Another tab may have continued this conversation.
async function catchUp() {
  const isShown = (run) => turns.some((turn) => turn.asked.run_id === run);
  const mine = sidebar.known.find((one) => one.id === conversation);
  if (current || !mine?.run_id || isShown(mine.run_id)) return;
  const found = await details(mine.id).catch(() => null);
  const missed = found?.turns.filter((asked) => !isShown(asked.run_id)) ?? [];
  if (current || mine.id !== conversation || !missed.length) return;
  choose(found);
  const added = missed.map((asked) => addTurn(asked));
  grew();
  await followAll(added);
}

// --- the rest -------------------------------------------------------------------------------------------------------

const composer = new Composer(send, complain);
const sidebar = new Sidebar({
  open(id) { if (id !== conversation) open(id).catch((error) => complain(error.message)); },
  deleted(id) { if (id === conversation) fresh(); },
  asks(one) { announce(`The agent asks you something, in another conversation: ${one.title}`); },
  drawn: retitle,
  looked: catchUp,
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing) {
    if (document.body.classList.contains("with-list")) { sidebar.toggle(false); $("menu").focus(); }
    else stop();
  }
  const card = current?.openCard;
  if (!card || !event.altKey || event.ctrlKey || event.metaKey || !["KeyY", "KeyN"].includes(event.code)) return;
  event.preventDefault();
  if (event.repeat) return;  // A key that is held down must not answer the next card, which nobody has read.
  if (!card.isInSight($("main"))) return goDown();
  const yes = event.shiftKey && !card.fields.length ? "remember" : "allow";
  card.answer(event.code === "KeyN" ? "deny" : yes);
});
$("stop").addEventListener("click", stop);
$("fresh").addEventListener("click", fresh);
$("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(isDark ? "light" : "dark");
});
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem(THEME, theme); } catch { /* the theme lasts as long as the page */ }
}
function closed(message) {
  for (const part of [$("form"), $("settings"), $("sidebar"), $("menu"), $("hint")]) part.hidden = true;
  $("log").append(element("p", "hint", message));
}
// A link pasted into a tab that already shows this page only changes the fragment and loads nothing.
addEventListener("hashchange", () => location.reload());

async function begin() {
  const theme = localStorage.getItem(THEME);
  if (theme) document.documentElement.dataset.theme = theme;
  await enter();
  settings = await get("/api/providers");
  offer();
  await sidebar.refresh();
  sidebar.watch();
  const last = stored(OPEN);
  if (last) await open(last);
}
begin().catch((error) => {
  if (error.status === 403) closed(error.message);
  else complain(`The server cannot be reached: ${error.message}`);
});
