// The list of conversations that can be continued.

import { get, post } from "./api.js";
import { $, button, element } from "./dom.js";

const SECOND = 1000;
const PATIENCE = 10;  // Seconds between refreshes while no agent works: another tab may have started one.

function when(seconds) {
  const then = new Date(seconds * 1000);
  const today = new Date();
  if (then.toDateString() === today.toDateString()) return then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return then.toLocaleDateString([], { day: "numeric", month: "short" });
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export class Sidebar {
  // `page.open(id)` shows a conversation. `deleted(id)`: that one is gone. `asks(one)`: one that is not shown waits for
  // an answer. `drawn()`: the list looks different. `looked()`: the list was read from the server again.
  constructor(page) {
    this.page = page;
    this.current = null;
    this.known = [];
    this.rows = new Map();  // By the ids of the conversations.
    this.told = new Set();  // The conversations whose question was announced.
    this.looks = 0;
    this.lastSeen = 0;
    $("menu").addEventListener("click", () => this.toggle(!document.body.classList.contains("with-list")));
    $("shade").addEventListener("click", () => this.toggle(false));
  }

  toggle(isOpen) {
    document.body.classList.toggle("with-list", isOpen);
    $("menu").setAttribute("aria-expanded", String(isOpen));
    if (isOpen) $("fresh").focus();
  }

  // Refreshes from now on, even in a hidden tab: its title shows that an agent waits for an answer.
  watch() {
    let seconds = 0;
    const timer = setInterval(() => {
      seconds += 1;
      if (this.isOver) clearInterval(timer);
      else if (seconds % PATIENCE === 0 || this.known.some((one) => one.is_running)) this.refresh();
    }, SECOND);
    addEventListener("focus", () => this.refresh());
  }

  // The conversations that wait for an answer and are not shown here.
  get asking() {
    return this.known.filter((one) => one.is_asking && one.id !== this.current);
  }

  async refresh() {
    const look = this.looks += 1;
    let found;
    try {
      found = (await get("/api/conversations")).conversations;
    } catch (error) {
      this.isOver = error.status === 403;
      return;  // The stream of the turn reports that the server is gone.
    }
    if (look < this.lastSeen) return;  // Answers may overtake each other.
    this.lastSeen = look;
    this.known = found;
    this.draw();
    this.page.looked();
  }

  select(id) {
    this.current = id;
    this.draw();
  }

  // Rows stay in place unless the order changes: a row that is replaced under somebody's finger gets no click.
  draw() {
    const list = $("conversations");
    const ids = new Set(this.known.map((one) => one.id));
    for (const [id, row] of this.rows) if (!ids.has(id)) { row.remove(); this.rows.delete(id); }
    const focused = document.activeElement;
    this.known.forEach((one, place) => {
      if (!this.rows.has(one.id)) this.rows.set(one.id, this.newRow(one.id));
      const row = this.rows.get(one.id);
      this.fill(row, one);
      if (list.children[place] !== row) list.insertBefore(row, list.children[place] ?? null);
    });
    if (list.contains(focused)) focused.focus();  // A row loses the focus when it is moved.
    $("no-conversations").hidden = this.known.length > 0;
    for (const one of this.asking) if (!this.told.has(one.id)) this.page.asks(one);
    this.told = new Set(this.asking.map((one) => one.id));
    const isAsked = this.told.size > 0;
    $("menu").classList.toggle("asks", isAsked);
    $("menu").setAttribute("aria-label", isAsked ? "Conversations, one of which waits for your answer" : "Conversations");
    this.page.drawn();
  }

  fill(row, one) {
    const [open, remove] = row.children;
    const [title, about] = open.children;
    setText(title, one.title || "(without words)");
    setText(about, `${one.provider} · ${one.is_asking ? "asks you" : one.is_running ? "at work" : when(one.changed)}`);
    if (one.id === this.current) open.setAttribute("aria-current", "true");
    else open.removeAttribute("aria-current");
    remove.setAttribute("aria-label", `Delete: ${one.title}`);
    row.classList.toggle("running", one.is_running);
    row.classList.toggle("asks", one.is_asking);
  }

  newRow(id) {
    const open = button("open", "", () => { this.toggle(false); this.page.open(id); });
    open.append(element("span", "title"), element("span", "about"));
    const remove = button("remove", "×", () => this.remove(id, remove));
    return element("li", "", open, remove);
  }

  // The first click asks, the second one deletes.
  async remove(id, asking) {
    if (!asking.classList.contains("sure")) {
      asking.classList.add("sure");
      asking.textContent = "Delete?";
      asking.addEventListener("blur", () => {
        asking.classList.remove("sure");
        asking.textContent = "×";
      }, { once: true });
      return;
    }
    await post(`/api/conversations/${id}/delete`, {}).catch(() => {});
    await this.refresh();
    this.page.deleted(id);
  }
}
