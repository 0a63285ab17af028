// The inside of a Markdown paragraph: code, emphasis, links. Makes nodes from text; HTML in it stays text. The work is
// linear in the text's length, whatever the text contains.

import { element } from "./dom.js";

const SPECIAL = /[\\`*_~[\]!<&\n]|https?:\/\//g;
const TARGET = /\(\s*(<[^<>\n]*>|[^\s()<]*(?:\([^\s()]*\)[^\s()]*)*)(?:\s+(?:"[^"\n]*"|'[^'\n]*'))?\s*\)/y;
const BARE = /https?:\/\/[^\s<>"'`|\\^{}\[\]*]+/y;
const ANGLED = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const ENTITY = /&(amp|lt|gt|quot|apos|nbsp|#39);/y;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'" };
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const MOST_OPEN = 100;  // Marks that still wait for their closing mark.
const TAGS = { "*1": "em", "*2": "strong", _1: "em", _2: "strong", "~2": "del" };

// Where a link may lead. Everything else (javascript:, data:, file:, a path) is shown as text.
function safeAddress(address) {
  if (!/^(?:https?:\/\/|mailto:)/i.test(address)) return null;
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url : null;
  } catch {
    return null;
  }
}

// A link that shows where it leads: the host is shown beside its text, unless the text is the address.
export function link(nodes, address) {
  const url = safeAddress(address);
  const text = nodes.map((node) => node.textContent ?? node).join("");
  if (!url) {
    return element("span", "dead-link", ...nodes, text === address ? "" : element("span", "where", ` (${address.slice(0, 200)})`));
  }
  const made = element("a", "", ...nodes);
  made.href = url.href;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  made.referrerPolicy = "no-referrer";
  made.title = url.href;
  const isPlain = text === address || text === url.href || `${text}/` === url.href;
  return element("span", "link", made, isPlain ? "" : element("span", "where", ` (${url.host || url.pathname})`));
}

// What an image, `![text](address)`, becomes: words and a link, because loading it would reveal that it was read.
function picture(nodes, address) {
  const text = nodes.map((node) => node.textContent ?? node).join("") || "image";
  return element("span", "picture", "🖼 ", link([text], address));
}

class Line {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.out = [];  // Nodes and strings.
    this.open = [];  // Marks not closed yet: { mark, count, place }, with `place` in `out`.
    this.unclosed = new Set();  // Lengths of backtick runs that are never closed.
  }

  nodes() {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(text);
      const next = found ? found.index : text.length;
      if (next > this.at) this.out.push(text.slice(this.at, next));
      this.at = next;
      if (found) this.special(found[0]);
    }
    return this.out;
  }

  special(mark) {
    if (mark === "\\") this.escape();
    else if (mark === "`") this.code();
    else if (mark === "\n") this.lineEnd();
    else if (mark === "*" || mark === "_" || mark === "~") this.emphasis(mark);
    else if (mark === "[") this.bracket("[");
    else if (mark === "!") {
      if (this.text[this.at + 1] === "[") this.bracket("![");
      else this.plain(1);
    } else if (mark === "]") this.closeBracket();
    else if (mark === "<") this.match(ANGLED, (found) => link([found[1]], found[1]));
    else if (mark === "&") this.match(ENTITY, (found) => ENTITIES[found[1]]);
    else this.bareAddress();
  }

  plain(length) {
    this.out.push(this.text.slice(this.at, this.at + length));
    this.at += length;
  }

  match(pattern, make) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (!found) return this.plain(1);
    this.out.push(make(found));
    this.at += found[0].length;
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "\n") {
      this.out.push(element("br"));
      this.at += 2;
    } else if (next && PUNCTUATION.test(next)) {
      this.out.push(next);
      this.at += 2;
    } else this.plain(1);
  }

  lineEnd() {
    const before = this.out.at(-1);
    const isHard = typeof before === "string" && before.endsWith("  ");
    this.out.push(isHard ? element("br") : "\n");
    this.at += 1;
  }

  code() {
    let end = this.at;
    while (this.text[end] === "`") end += 1;
    const length = end - this.at;
    if (!this.unclosed.has(length)) {
      for (let from = end; ;) {
        const start = this.text.indexOf("`", from);
        if (start < 0) break;
        from = start;
        while (this.text[from] === "`") from += 1;
        if (from - start === length) {
          let inside = this.text.slice(end, start).replaceAll("\n", " ");
          if (inside.startsWith(" ") && inside.endsWith(" ") && inside.trim()) inside = inside.slice(1, -1);
          this.out.push(element("code", "", inside));
          this.at = from;
          return;
        }
      }
      this.unclosed.add(length);
    }
    this.plain(length);
  }

  emphasis(mark) {
    const { text } = this;
    let end = this.at;
    while (text[end] === mark) end += 1;
    const before = text[this.at - 1] ?? " ";
    const after = text[end] ?? " ";
    const inWord = mark === "_" && /[\p{L}\p{N}]/u.test(before) && /[\p{L}\p{N}]/u.test(after);
    let count = end - this.at;
    if (count > 3 || inWord || (mark === "~" && count !== 2)) return this.plain(count);
    if (/\S/.test(before)) count = this.closeEmphasis(mark, count);
    if (count && /\S/.test(after) && this.open.length < MOST_OPEN) {
      this.open.push({ mark, count, place: this.out.length });
      this.out.push(mark.repeat(count));
    } else if (count) this.out.push(mark.repeat(count));
    this.at = end;
  }

  // Returns how many of the marks closed nothing.
  closeEmphasis(mark, count) {
    while (count) {
      const index = this.open.findLastIndex((one) => one.mark === mark || one.mark.endsWith("["));
      const opener = this.open[index];
      if (!opener || opener.mark !== mark) return count;  // Emphasis does not reach across a link's bracket.
      const used = Math.min(count, opener.count, 2);
      if (mark === "~" && used < 2) return count;
      this.open.length = index + 1;
      const inside = this.out.splice(opener.place + 1);
      opener.count -= used;
      if (opener.count) this.out[opener.place] = mark.repeat(opener.count);
      else {
        this.out.length = opener.place;
        this.open.pop();
      }
      this.out.push(element(TAGS[mark + used], "", ...inside));
      count -= used;
    }
    return 0;
  }

  bracket(mark) {
    if (this.open.length < MOST_OPEN) this.open.push({ mark, count: 1, place: this.out.length });
    this.plain(mark.length);
  }

  closeBracket() {
    const index = this.open.findLastIndex((one) => one.mark.endsWith("["));
    TARGET.lastIndex = this.at + 1;
    const found = index >= 0 && this.text[this.at + 1] === "(" ? TARGET.exec(this.text) : null;
    if (!found) {
      if (index >= 0) this.open.splice(index, 1);
      return this.plain(1);
    }
    const opener = this.open[index];
    this.open.length = index;
    // Links cannot be nested: a link inside becomes plain text.
    const inside = this.out.splice(opener.place + 1).map((node) => (node.querySelector?.("a") ? node.textContent : node));
    this.out.length = opener.place;
    const address = found[1].startsWith("<") ? found[1].slice(1, -1) : found[1];
    this.out.push(opener.mark === "[" ? link(inside, address) : picture(inside, address));
    this.open = this.open.filter((one) => one.mark !== "[");  // No link can enclose this one.
    this.at += 1 + found[0].length;
  }

  bareAddress() {
    BARE.lastIndex = this.at;
    const found = BARE.exec(this.text);
    if (!found) return this.plain(1);
    // Punctuation after an address in a sentence is not part of it.
    let address = found[0].replace(/[.,;:!?_~]{1,20}$/, "");
    if (address.endsWith(")") && !address.includes("(")) address = address.replace(/\){1,20}$/, "");
    this.out.push(safeAddress(address) ? link([address], address) : address);
    this.at += address.length;
  }
}

export const inline = (text) => new Line(text).nodes();
