// One turn on the page: the prompt, and everything the agent does until it is done.

import { Card } from "./approval.js";
import { events, imageAddress, post, ServerError } from "./api.js";
import { element, seconds, thousands } from "./dom.js";
import { Markdown } from "./markdown.js";
import { ToolCall } from "./tools.js";

const BUDGET = 5;  // Milliseconds per frame for showing events; the rest is for the browser's layout.
const STRETCH = 30;
const SLICE = 6000;  // Characters of text that are added at once.

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
// A hidden page gets no animation frames.
const nextFrame = () => new Promise((resolve) => (document.hidden ? setTimeout(resolve, 50) : requestAnimationFrame(resolve)));

export class Turn {
  // `page` needs grew() and asked(card).
  constructor(asked, page) {
    this.asked = asked;
    this.page = page;
    this.tools = new Map();
    this.cards = new Map();
    this.further = asked.further.map(([heard, text]) => ({ heard, text }));
    this.open = null;  // Where the next piece is added, and its kind.
    this.waiting = [];  // Frames that have not been shown yet.
    this.received = 0;  // The number of the last frame that arrived.
    this.hold = null;  // Frames are not shown before this promise settles.
    this.isDone = false;
    this.isLeft = false;
    this.result = null;
    this.began = asked.since ?? performance.now() / 1000;
    this.requests = 1;  // To the model, estimated from the events.
    this.hasNewOutput = false;
    this.box = element("article", "agent busy", element("p", "who", asked.provider));
    this.box.setAttribute("aria-label", `Answer of ${asked.provider}`);
    this.box.setAttribute("aria-busy", "true");
    this.whole = element("section", "turn", said(asked.prompt, asked.images), this.box);
  }

  // --- receiving ----------------------------------------------------------------------------------------------------

  // Resolves at the end. After a lost connection it continues after the last event received.
  async follow() {
    let last = null;
    while (!this.isDone && !this.isLeft) {
      try {
        const drawing = this.drawAll();
        for await (const frame of events(this.asked.run_id, last)) {
          this.lost(false);
          if (frame.id) {
            last = frame.id;
            this.received = numberOf(frame);
          }
          this.waiting.push(frame);
          this.wake?.();
          if (this.waiting.length > 500) await nextFrame();
          if (frame.event === "done" || this.isLeft) break;
        }
        this.isRead = true;
        this.wake?.();
        await drawing;
        if (this.isDone || this.isLeft) return;
      } catch (error) {
        this.isRead = true;
        this.wake?.();
        if (error instanceof ServerError) return this.gone(error);
      }
      this.lost(true);
      await sleep(1000);
    }
  }

  leave() {
    this.isLeft = true;
    this.wake?.();
  }

  // Shows frames as they arrive, a few per animation frame of the browser.
  async drawAll() {
    this.isRead = false;
    for (;;) {
      if (this.isLeft) return;
      if (!this.waiting.length) {
        if (this.isRead) return;
        while (this.further[0]?.isNew && this.further[0].heard <= this.received) this.interject(this.further.shift().text);
        await new Promise((resolve) => { this.wake = resolve; });
        continue;
      }
      await nextFrame();
      await this.hold;
      const until = performance.now() + BUDGET;
      while (this.waiting.length && performance.now() < until) this.showNext();
      this.page.grew();
    }
  }

  showNext() {
    const frame = this.waiting.shift();
    this.sayFurther(frame);
    const event = frame.whole ?? JSON.parse(frame.data);
    this.countRequest(frame.event);
    if (frame.event === "text" || frame.event === "thinking") {
      let { text } = event;
      // Many small pieces are shown as one, and a large one as many.
      while (text.length < SLICE && this.waiting[0]?.event === frame.event && !this.waiting[0].whole && !this.wasInterrupted(this.waiting[0]))
        text += JSON.parse(this.waiting.shift().data).text;
      this.settleBefore(frame);
      if (text.length > SLICE) this.waiting.unshift({ event: frame.event, whole: { text: text.slice(SLICE) } });
      return this.piece(frame.event, text.slice(0, SLICE));
    }
    try {
      this.settleBefore(frame);
      this.show(frame.event, event, numberOf(frame));
    } catch (error) {
      this.add(element("p", "error", `An event cannot be shown: ${error.message}`));
    }
  }

  show(kind, event, number) {
    if (kind === "tool_use") this.toolUse(event);
    else if (kind === "tool_result") this.toolResult(event);
    else if (kind === "permission") this.permission(event.request, number);
    else if (kind === "error") this.error(event);
    else if (kind === "done") this.done(event.result);
  }

  // The model reads a tool's output with its next request.
  countRequest(kind) {
    if (kind === "tool_result") this.hasNewOutput = true;
    else if (this.hasNewOutput && ["text", "thinking", "tool_use"].includes(kind)) {
      this.requests += 1;
      this.hasNewOutput = false;
    }
  }

  // Adds nodes in stretches that the browser can skip while they are out of sight.
  add(node) {
    if (!this.stretch || this.stretch.childElementCount >= STRETCH) {
      this.stretch = element("div", "stretch");
      this.box.append(this.stretch);
    }
    this.stretch.append(node);
  }

  // --- words --------------------------------------------------------------------------------------------------------

  piece(kind, text) {
    if (this.open?.kind !== kind) {
      this.closePiece();
      const holder = element("div", kind === "text" ? "text" : "thought");
      if (kind === "text") this.add(holder);
      else {
        const box = element("details", "thinking", element("summary", "", "Thinking"), holder);
        box.setAttribute("aria-label", "Thinking");
        this.add(box);
      }
      this.open = { kind, markdown: new Markdown(holder) };
    }
    this.open.markdown.push(text);
  }

  closePiece() {
    this.open?.markdown.end();
    this.open = null;
  }

  // Shows what somebody said while the agent worked, at the place where it was said.
  sayFurther(frame) {
    while (this.wasInterrupted(frame)) this.interject(this.further.shift().text);
  }

  // Whether something was said before this event and is not shown yet.
  wasInterrupted(frame) {
    return this.further.length > 0 && this.further[0].heard < numberOf(frame);
  }

  interject(text) {
    this.closePiece();
    this.add(said(text, [], "further"));
  }

  // --- tools and approvals ------------------------------------------------------------------------------------------

  toolUse(event) {
    this.closePiece();
    const call = new ToolCall(event, this.asked.tools[event.tool_id], this.began);
    this.tools.set(event.tool_id, call);
    this.add(call.box);
  }

  toolResult(event) {
    this.tools.get(event.tool_id)?.result(event);
  }

  permission(request, number) {
    if (this.cards.has(request.id)) {  // The server repeats it after a lost connection.
      this.cards.get(request.id).number = number;
      return;
    }
    this.closePiece();
    const card = new Card(request, this.asked.provider, async (answer) => {
      await post(`/api/runs/${this.asked.run_id}/answer`, answer);
      this.asked.answers[request.id] = answer.allow ? (answer.remember ? "remember" : "allow") : "deny";
    });
    card.number = number;
    this.cards.set(request.id, card);
    this.add(card.box);
    // An edit is shown only once: in the card, and after the answer in the call.
    const call = this.tools.get(request.tool_id)?.box;
    const wasOpen = call?.open;
    if (wasOpen) call.open = false;
    card.closed = () => {
      if (wasOpen) call.open = true;
      this.page.grew();
    };
    const answered = this.asked.answers[request.id];
    if (answered) card.close(answered);
    else this.page.asked(card);
  }

  // The agent waits for its answer. So if a later event arrives, it was answered, or the answer came too late.
  settleBefore(frame) {
    if (frame.event === "error" || frame.event === "done") return;  // The run was stopped.
    for (const card of this.cards.values()) if (card.number < numberOf(frame)) this.closeCard(card, "elsewhere");
  }

  closeCard(card, otherwise) {
    card.close(this.asked.answers[card.request.id] ?? card.sending ?? otherwise);
  }

  get openCard() {
    return [...this.cards.values()].find((card) => card.isOpen);
  }

  // --- the end ------------------------------------------------------------------------------------------------------

  error(event) {
    this.closePiece();
    const isMild = event.code === "CLI_WARNING";
    this.add(element("p", isMild ? "warning" : "error", event.code === "ABORTED" ? "Stopped." : event.message));
  }

  done(result) {
    this.over();
    this.result = result;
    this.add(element("p", "cost", summary(result)));
  }

  over() {
    this.closePiece();
    while (this.further.length) this.interject(this.further.shift().text);
    this.isDone = true;
    this.box.classList.remove("busy");
    this.box.removeAttribute("aria-busy");
    for (const tool of this.tools.values()) tool.end();
    for (const card of this.cards.values()) this.closeCard(card, "over");
  }

  gone(error) {
    this.lost(false);
    this.over();
    this.add(element("p", "error", error.status === 404 ? "The server has not kept what was said here." : error.message));
  }

  lost(isLost) {
    if (isLost && !this.note) this.add(this.note = element("p", "lost", "The connection is lost. Trying again…"));
    else if (!isLost && this.note) { this.note.remove(); this.note = null; }
  }

  stop() {
    return post(`/api/runs/${this.asked.run_id}/abort`, {});
  }

  async steer(text) {
    const posted = post(`/api/runs/${this.asked.run_id}/steer`, { text });
    // Events that arrive meanwhile may already answer these words, and must be shown below them.
    this.hold = Promise.race([posted.catch(() => null), sleep(1000)]);
    const { heard } = await posted;
    if (this.isDone) return this.interject(text);
    this.further.push({ heard, text, isNew: true });
    this.wake?.();
  }
}

// The number of an event, counted from 1. Open requests that a server repeats after a reconnect have none.
function numberOf(frame) {
  return frame.id ? Number(frame.id.split("-")[1]) : NaN;
}

// Some agents also count tokens read from a cache as input.
export function tokensOf(usage, isCachedInInput) {
  const cached = isCachedInInput ? 0 : usage.cache_read_tokens + usage.cache_write_tokens;
  return usage.input_tokens + usage.output_tokens + cached;
}

function summary(result) {
  const parts = [];
  const { usage } = result;
  if (usage) parts.push(`${thousands(usage.input_tokens)} tokens in, ${thousands(usage.output_tokens)} out`);
  if (usage?.cache_read_tokens) parts.push(`${thousands(usage.cache_read_tokens)} from the cache`);
  if (result.total_cost_usd !== null) parts.push(`$${result.total_cost_usd.toFixed(4)}`);
  parts.push(seconds(result.duration_ms / 1000));
  if (result.error_subtype && !result.aborted) parts.push(`failed: ${result.error_subtype}`);
  return parts.join(" · ");
}

function said(text, images, className = "") {
  const holder = element("div", `me ${className}`.trim(), element("span", "label", "You: "), element("div", "words", text));
  for (const name of images) {
    const picture = element("img");
    picture.alt = "An image of yours";
    imageAddress(name).then((address) => { if (address) picture.src = address; else picture.remove(); }, () => picture.remove());
    holder.append(picture);
  }
  return holder;
}
