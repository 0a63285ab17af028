// Helpers that create elements. Text reaches the page only through textContent and text nodes, never as markup.

export const $ = (id) => document.getElementById(id);

export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export function button(className, text, act, label = "") {
  const made = element("button", className, text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

// A button that copies `text()`, and confirms it for a moment.
export function copyButton(text, label) {
  const made = button("copy", "Copy", async () => {
    try {
      await navigator.clipboard.writeText(text());
      made.textContent = "Copied";
    } catch {
      made.textContent = "Not copied";  // Forbidden, or not a secure context.
    }
    setTimeout(() => { made.textContent = "Copy"; }, 1500);
  }, label);
  return made;
}

export function seconds(value) {
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 59.5) return `${Math.round(value)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export function thousands(number) {
  if (number < 1000) return String(number);
  return number < 999_500 ? `${(number / 1000).toFixed(number < 9950 ? 1 : 0)}k` : `${(number / 1e6).toFixed(1)}M`;
}

// The text with invisible and direction-changing characters spelled out: people decide by what they see.
export function visible(text) {
  return String(text ?? "").replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (one) => (one === "\n" || one === "\t" ? one : `\\u{${one.codePointAt(0).toString(16)}}`));
}

// Text in blocks of limited size: when a letter is added to a block, the browser lays out the whole block.
const BLOCK = 8000;

export function blocks(text) {
  const found = [];
  for (let start = 0; start < text.length;) {
    let end = Math.min(text.length, start + BLOCK);
    const newline = text.lastIndexOf("\n", end - 1);
    if (end < text.length && newline > start) end = newline + 1;
    found.push(text.slice(start, end));
    start = end;
  }
  return found;
}

// A long text of which only the beginning is shown at first.
const FIRST = 20_000;

export function longText(className, text, label) {
  const holder = element("pre", className);
  holder.tabIndex = 0;  // It scrolls, so it must be reachable by keyboard.
  holder.setAttribute("aria-label", label);
  holder.setAttribute("role", "region");
  const show = (part) => holder.append(...blocks(part).map((block) => element("span", "block", block)));
  show(text.slice(0, FIRST));
  if (text.length > FIRST) {
    const more = button("more-text", `Show the other ${thousands(text.length - FIRST)} characters`, () => {
      more.remove();
      show(text.slice(FIRST));
    });
    holder.append(more);
  }
  return holder;
}
