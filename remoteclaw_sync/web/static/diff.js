// Edits as people read them: which lines are removed, which are added.

import { button, element, visible } from "./dom.js";

const MOST_SHOWN = 200;  // Lines, until somebody asks for all of them.
const CONTEXT = 3;
const MOST_COMPARED = 1_000_000;  // Pairs of lines.

const PATH = ["file_path", "filePath", "path", "target_file"];
const BEFORE = ["old_string", "oldString", "old_str"];
const AFTER = ["new_string", "newString", "new_str"];
const WHOLE = ["content", "file_text"];
const PATCH = ["patch", "patchText", "diff"];

// What a tool's input says about files, by the argument names that agents' tools use: `edits` are [{ path, lines }].
// `besides` is the part of the input that no diff shows, because whoever allows a call has to see all of it.
export function editsIn(input, outerPath = null) {
  const named = (names) => names.find((name) => typeof input[name] === "string");
  const others = (...names) => Object.fromEntries(Object.entries(input).filter(([name]) => !names.includes(name)));
  if (!input || typeof input !== "object") return { edits: [], besides: input };
  const at = named(PATH);
  const path = input[at] ?? outerPath ?? "";
  const isInner = outerPath !== null;
  if (Array.isArray(input.changes) && !isInner) return several("changes", input.changes.map(changeIn), others("changes"));
  if (Array.isArray(input.edits) && !isInner)
    return several("edits", input.edits.map((edit) => editsIn(edit, path)), others("edits", at));
  const [before, after, patch, whole] = [BEFORE, AFTER, PATCH, WHOLE].map(named);
  if (before && after)
    return { edits: [{ path, lines: compare(input[before], input[after]) }], besides: others(at, before, after) };
  if (patch) return { edits: [{ path, lines: patchLines(input[patch]) }], besides: others(at, patch) };
  if (path && whole) return { edits: [{ path, lines: compare("", input[whole]) }], besides: others(at, whole) };
  return { edits: [], besides: input };
}

function several(name, found, others) {
  const besides = found.map((one) => one.besides).filter(isTelling);
  return { edits: found.flatMap((one) => one.edits), besides: besides.length ? { ...others, [name]: besides } : others };
}

// Whether a value contains anything: false and empty values are what people expect anyway.
export function isTelling(value) {
  try {
    return value && typeof value === "object" ? Object.values(value).some(isTelling) : Boolean(value);
  } catch {
    return true;  // Nested too deep to look into.
  }
}

function changeIn(change) {
  if (!change || typeof change !== "object" || typeof change.path !== "string") return { edits: [], besides: change };
  const { path: from, move_path: goal, kind, diff, ...besides } = change;
  const to = goal ?? kind?.move_path;
  const type = kind?.type ?? kind;
  const isGone = type === "delete";
  const path = `${to ? `${from} → ${to}` : from}${isGone ? " (deleted)" : ""}`;
  if (diff && typeof diff !== "string") besides.diff = diff;
  const text = typeof diff === "string" ? diff : "";
  // Of a new or deleted file, agents give the text, which may have lines that look like those of a patch.
  const isPatch = type === "add" || isGone ? /^(?:--- .*\n\+\+\+ |@@ )/.test(text) : /^(?:@@|[+-])/m.test(text);
  if (isPatch) return { edits: [{ path, lines: patchLines(text) }], besides };
  return { edits: [{ path, lines: isGone ? compare(text, "") : compare("", text) }], besides };
}

// Every line of it, headers included: whoever allows a call has to see which files it names.
function patchLines(patch) {
  const kinds = { "+": "add", "-": "remove" };
  let isInHunk = !/^(?:--- |diff )/.test(patch);
  return linesOf(patch).map((line) => {
    if (/^(?:@@|\*\*\* )/.test(line)) isInHunk = true;
    else if (/^diff /.test(line)) isInHunk = false;
    const kind = isInHunk && !/^(?:@@|\*\*\* )/.test(line) ? kinds[line[0]] ?? "" : "gap";
    return { kind, text: kind === "gap" || (kind === "" && line[0] !== " ") ? line : line.slice(1) };
  });
}

function linesOf(text) {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

export function compare(before, after) {
  const [old, fresh] = [linesOf(before), linesOf(after)];
  let start = 0;
  while (start < old.length && start < fresh.length && old[start] === fresh[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < fresh.length - start && old.at(-1 - end) === fresh.at(-1 - end)) end += 1;
  const middle = longestCommon(old.slice(start, old.length - end), fresh.slice(start, fresh.length - end));
  const same = (lines) => lines.map((text) => ({ kind: "", text }));
  return shortened([...same(old.slice(0, start)), ...middle, ...same(end ? old.slice(-end) : [])]);
}

function longestCommon(old, fresh) {
  const all = (kind, lines) => lines.map((text) => ({ kind, text }));
  const wide = fresh.length + 1;
  if (!old.length || !fresh.length || old.length * fresh.length > MOST_COMPARED) return [...all("remove", old), ...all("add", fresh)];
  const length = new Uint32Array((old.length + 1) * wide);
  for (let i = old.length - 1; i >= 0; i -= 1)
    for (let j = fresh.length - 1; j >= 0; j -= 1)
      length[i * wide + j] = old[i] === fresh[j] ? length[(i + 1) * wide + j + 1] + 1
        : Math.max(length[(i + 1) * wide + j], length[i * wide + j + 1]);
  const found = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < fresh.length) {
    if (i < old.length && j < fresh.length && old[i] === fresh[j]) { found.push({ kind: "", text: old[i] }); i += 1; j += 1; }
    else if (j >= fresh.length || (i < old.length && length[(i + 1) * wide + j] >= length[i * wide + j + 1])) {
      found.push({ kind: "remove", text: old[i] });
      i += 1;
    } else { found.push({ kind: "add", text: fresh[j] }); j += 1; }
  }
  return found;
}

// Leaves out the lines that are far from any change.
function shortened(lines) {
  const near = new Uint8Array(lines.length);
  lines.forEach((line, index) => { if (line.kind) near.fill(1, Math.max(0, index - CONTEXT), index + CONTEXT + 1); });
  const found = [];
  lines.forEach((line, index) => {
    if (near[index]) found.push(line);
    else if (index === 0 || near[index - 1]) found.push({ kind: "gap", text: "⋯" });
  });
  return found;
}

const SIGNS = { add: "+", remove: "−", gap: " " };
const WORDS = { add: "added: ", remove: "removed: " };

export function diffBox({ path, lines }) {
  const count = (kind) => lines.filter((line) => line.kind === kind).length;
  const head = element("div", "diff-head", element("span", "path", visible(path) || "change"),
    element("span", "plus", `+${count("add")}`), element("span", "minus", `−${count("remove")}`));
  const body = element("div", "diff-lines");
  body.tabIndex = 0;
  body.setAttribute("role", "region");
  body.setAttribute("aria-label", `Change of ${path || "a file"}`);
  const show = (some) => body.append(...some.map(lineBox));
  show(lines.slice(0, MOST_SHOWN));
  if (lines.length > MOST_SHOWN) {
    const more = button("more-text", `Show all ${lines.length} lines`, () => { more.remove(); show(lines.slice(MOST_SHOWN)); });
    body.append(more);
  }
  return element("div", "diff", head, body);
}

function lineBox({ kind, text }) {
  const sign = element("span", "sign", SIGNS[kind] ?? " ");
  sign.setAttribute("aria-hidden", "true");
  return element("div", `line ${kind}`, sign, WORDS[kind] ? element("span", "label", WORDS[kind]) : "", visible(text));
}
