// The agent asks: a card with the call, or with its questions. It never takes the focus, no single key says yes, and no
// key works while the card is out of sight: nobody must allow a command by accident.

import { ServerError } from "./api.js";
import { button, element, visible } from "./dom.js";
import { inputBox } from "./tools.js";

const OUTCOMES = {
  allow: "Allowed.", remember: "Allowed for this session.", deny: "Denied.",
  elsewhere: "Answered elsewhere, or too late: nothing was sent.", over: "Not answered.",
};
const SHELL = ["command", "cmd"];  // The arguments in which shells get their command.
let number = 0;

export class Card {
  // `send(answer)` sends the answer to the server.
  constructor(request, provider, send) {
    this.request = request;
    this.send = send;
    this.isOpen = true;
    const whose = request.parent_tool_use_id ? `a sub-agent of ${provider}` : provider;
    const tool = visible(request.tool_name);
    const title = element("h3", "", request.questions.length ? `${provider} asks you` : `May ${whose} use ${tool}?`);
    title.id = `card-${number += 1}`;
    this.box = element("section", "card", title);
    this.box.setAttribute("role", "group");
    this.box.setAttribute("aria-labelledby", title.id);
    if (request.reason) this.box.append(element("p", "reason", visible(request.reason)));
    this.fields = [];
    if (request.questions.length) this.box.append(...request.questions.map((question) => this.question(question)));
    else this.box.append(this.body = inputBox(request.input));
    this.foot = element("div", "card-foot");
    this.note = element("p", "outcome");
    this.note.setAttribute("role", "status");
    this.box.append(this.foot, this.note);
    this.offer();
  }

  offer() {
    const isQuestion = this.fields.length > 0;
    const why = element("input", "why");
    why.type = "text";
    why.placeholder = "If not, why?";
    why.setAttribute("aria-label", "What the agent is told if you deny it");
    this.why = why;
    const allow = button("primary allow", isQuestion ? "Answer" : "Allow", () => this.answer("allow"));
    const deny = button("deny", isQuestion ? "Skip" : "Deny", () => this.answer("deny"));
    allow.title = "Alt+Y";
    allow.setAttribute("aria-keyshortcuts", "Alt+Y");
    deny.title = "Alt+N";
    deny.setAttribute("aria-keyshortcuts", "Alt+N");
    if (isQuestion) return this.foot.append(allow, deny, element("p", "keys", element("span", "chords", "Alt+Y answers, Alt+N skips.")));
    const remember = button("remember", "Allow for this session", () => this.answer("remember"));
    remember.title = "Alt+Shift+Y";
    remember.setAttribute("aria-keyshortcuts", "Alt+Shift+Y");
    const isShell = SHELL.some((name) => name in Object(this.request.input));
    const all = isShell ? "this same command" : `all further calls of ${visible(this.request.tool_name)}`;
    const chords = element("span", "chords", " Alt+Y allows, Alt+Shift+Y for this session, Alt+N denies.");
    this.foot.append(allow, remember, deny, why, element("p", "keys", `“For this session” covers ${all}.`, chords));
  }

  question(question) {
    const words = String(question.question ?? question.header ?? "?");
    const label = visible(words);
    const several = Boolean(question.multiSelect ?? question.multiple);
    const choices = (Array.isArray(question.options) ? question.options : []).map((option) => {
      const input = element("input");
      input.type = several ? "checkbox" : "radio";
      input.name = `question-${number}-${this.fields.length}`;
      input.value = String(option.label ?? option);
      const about = option.description ? element("span", "about", ` ${visible(String(option.description))}`) : "";
      return { input, row: element("label", "option", input, element("b", "", visible(input.value)), about) };
    });
    const own = element("input", "own");
    own.type = "text";
    own.setAttribute("aria-label", `Your own answer to: ${label}`);
    own.placeholder = choices.length ? "Or in your own words" : "Your answer";
    this.fields.push({ words, several, choices, own });
    return element("fieldset", "", element("legend", "", label), ...choices.map((choice) => choice.row), own);
  }

  // Whether people can see what they decide on: half of the card, or a screenful.
  isInSight(room) {
    const [box, around] = [this.box.getBoundingClientRect(), room.getBoundingClientRect()];
    const seen = Math.min(box.bottom, around.bottom) - Math.max(box.top, around.top);
    return seen >= Math.min(box.height, around.height) / 2;
  }

  answers() {
    const found = {};
    for (const { words, several, choices, own } of this.fields) {
      const chosen = choices.filter((choice) => choice.input.checked).map((choice) => choice.input.value);
      if (own.value.trim()) chosen.push(own.value.trim());
      if (chosen.length) found[words] = several ? chosen : chosen.at(-1);
    }
    return found;
  }

  async answer(how) {
    if (!this.isOpen || this.sending) return;
    this.sending = how;  // The tool may run before the server confirms this.
    this.buttons((one) => { one.disabled = true; });
    const said = { request_id: this.request.id, allow: how !== "deny", remember: how === "remember" };
    if (how === "deny") said.message = this.why.value.trim();
    else if (this.fields.length) said.answers = this.answers();
    try {
      await this.send(said);
      this.close(how);
    } catch (error) {
      this.sending = null;
      if (error instanceof ServerError && error.status !== 400) {
        this.close("elsewhere");
        this.note.textContent = OUTCOMES.elsewhere;
        return;
      }
      this.buttons((one) => { one.disabled = false; });
      this.note.textContent = `Not sent: ${error.message}`;
    }
  }

  buttons(change) {
    for (const one of this.foot.querySelectorAll("button")) change(one);
  }

  // `how` is the answer, or says that nobody answered.
  close(how) {
    if (!this.isOpen) return;
    this.isOpen = false;
    const hadFocus = this.box.contains(document.activeElement);
    this.foot.remove();
    this.body?.remove();  // The call itself is shown above.
    for (const field of this.box.querySelectorAll("input")) {
      field.disabled = true;
      if (field.type === "text" && !field.value) field.remove();
    }
    this.box.classList.add("answered");
    this.note.textContent = OUTCOMES[how] ?? OUTCOMES.over;
    this.closed?.();
    if (hadFocus) document.getElementById("prompt").focus();
  }
}
