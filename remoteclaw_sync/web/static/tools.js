// A tool call: its input, its output, how long it took. Folded, and filled when somebody opens it; edits start open.

import { diffBox, editsIn, isTelling } from "./diff.js";
import { element, longText, seconds, visible } from "./dom.js";

const TELLING = ["command", "cmd", "file_path", "filePath", "path", "pattern", "query", "url", "description", "prompt"];
const STATES = { running: ["◌", "running"], done: ["✓", "done"], failed: ["✗", "failed"], unfinished: ["–", "not finished"] };

export function indented(value) {
  try { return JSON.stringify(value, null, 2); } catch { return "(nested too deep to be shown)"; }
}

// The one argument that says most about a call.
export function gist(input) {
  for (const name of TELLING) {
    const value = input?.[name];
    if (typeof value === "string" && value) return value;
    if (Array.isArray(value) && value.every((one) => typeof one === "string")) return value.join(" ");
  }
  return "";
}

// The input of a call, for somebody who has to decide on it or looks at it later.
export function inputBox(input) {
  const { edits, besides } = editsIn(input);
  if (edits.length) {
    const rest = isTelling(besides) ? longText("input", visible(indented(besides)), "What else is asked for") : "";
    return element("div", "edits", ...edits.map(diffBox), rest);
  }
  const { command, cmd, cwd, description, ...others } = input ?? {};
  const shell = [command, cmd].filter((one) => one !== undefined);
  if (shell.length === 1 && typeof shell[0] === "string" && !Object.keys(others).length) {
    const about = [description, cwd && `in ${cwd}`].filter(Boolean).map((words) => element("p", "about", visible(String(words))));
    return element("div", "", ...about, longText("input command", visible(shell[0]), "Command"));
  }
  return longText("input", visible(indented(input)), "Input");
}

export class ToolCall {
  // `times`, for a turn that is shown again: when the call began and ended, in seconds since the turn `began`.
  constructor(event, times, began) {
    this.input = event.input;
    this.output = null;
    this.times = times ?? [];
    this.began = this.times.length ? began + this.times[0] : performance.now() / 1000;
    this.icon = element("span", "state");
    this.icon.setAttribute("aria-hidden", "true");
    this.said = element("span", "label");
    this.time = element("span", "time");
    const about = element("span", "gist", visible(gist(event.input).slice(0, 200).replaceAll("\n", " ")));
    const summary = element("summary", "", this.icon, element("b", "", visible(event.tool_name)), about, this.said, this.time);
    this.box = element("details", event.parent_tool_use_id ? "tool sub" : "tool", summary);
    this.box.setAttribute("aria-label", `Tool call: ${event.tool_name}`);
    this.state("running");
    this.box.addEventListener("toggle", () => this.fill());
    if (editsIn(event.input).edits.length) {
      this.box.open = true;
      this.box.classList.add("edit");
      this.fill();
    }
  }

  state(name) {
    this.box.dataset.state = name;
    [this.icon.textContent, this.said.textContent] = [STATES[name][0], ` ${STATES[name][1]} `];
  }

  fill() {
    if (!this.box.open) return;
    if (!this.isFilled) this.box.append(inputBox(this.input));
    this.isFilled = true;
    if (this.output !== null && !this.isWhole) {
      this.box.append(longText("output", this.output || "(no output)", "Output"));
      this.isWhole = true;
    }
  }

  result(event) {
    this.output = event.output;
    this.state(event.is_error ? "failed" : "done");
    const [start, end] = this.times;
    const took = end === undefined ? performance.now() / 1000 - this.began : end - start;
    this.time.textContent = seconds(Math.max(0, took));
    this.fill();
  }

  end() {
    if (this.output === null) this.state("unfinished");
  }
}
