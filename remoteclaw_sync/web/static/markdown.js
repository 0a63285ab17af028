// Markdown as it streams in. Each complete line is read once and its elements stay. Only the last, unfinished line is
// shown provisionally and taken back when more arrives. So the work for a piece of text does not grow with the answer.
//
// Written here rather than taken from a library: libraries turn a whole text into HTML, so each piece of a long answer
// would mean work for all of it, and their HTML would then have to be sanitised. Here there is no HTML at all: nodes
// are created one by one, from a fixed list of elements, and text is inserted as text.

import { copyButton, element } from "./dom.js";
import { inline } from "./inline.js";

const DEEPEST = 12;  // Levels of nested lists and quotations.
const LONGEST = 4000;  // Characters of a paragraph, or of a line, that are laid out as one.
const MOST_BLOCKS = 40;  // In a part of the answer that the browser can skip while it is out of sight.
const MOST_ITEMS = 100;  // Of a list or a table that is laid out as one.
const MOST_COLUMNS = 30;
const CODE_LINES = 50;

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}(?! )| (?= )|$)/;
const TASK = /^\[([ xX])\] /;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*){0,200}\|?[ \t]*$/;
const PERHAPS_DELIMITERS = /^[\s|:-]*$/;

const isBlank = (line) => line.trim() === "";
const indentOf = (line) => line.length - line.trimStart().length;

function cellsOf(line) {
  const cells = [];
  let cell = "";
  const inner = line.trim().replace(/^\|/, "");
  for (let at = 0; at < inner.length; at += 1) {
    if (inner[at] === "\\" && inner[at + 1] === "|") { cell += "|"; at += 1; }
    else if (inner[at] === "|" && cells.length < MOST_COLUMNS) { cells.push(cell); cell = ""; }
    else cell += inner[at];
  }
  if (cell.trim()) cells.push(cell);
  return cells;
}

export class Markdown {
  constructor(root) {
    this.root = root;
    this.part = null;
    this.containers = [];  // Open quotations and list items, outermost first.
    this.leaf = null;  // What takes the next line: a paragraph, code or a table.
    this.rest = "";  // The unfinished line.
    this.isPiece = false;  // Whether the line that is being read has no end yet.
    this.isMiddle = false;  // Whether the start of the unfinished line was already read, because it is so long.
    this.trial = null;
  }

  push(text) {
    this.takeBack();
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    for (const line of lines) this.line(line.endsWith("\r") ? line.slice(0, -1) : line);
    while (this.rest.length > 2 * LONGEST) {
      // Do not cut between the two halves of a surrogate pair.
      const cut = this.rest.codePointAt(LONGEST - 1) > 0xffff ? LONGEST + 1 : LONGEST;
      this.line(this.rest.slice(0, cut), true);
      this.rest = this.rest.slice(cut);
    }
    this.tryRest();
    this.draw(this.leaf);
  }

  end() {
    this.takeBack();
    if (this.rest || this.isMiddle) this.line(this.rest);
    this.rest = "";
    this.close();
  }

  // --- the unfinished line ----------------------------------------------------------------------------------------

  tryRest() {
    if (!this.rest) return;
    this.trial = { added: [], containers: [...this.containers], leaf: this.leaf, length: this.leaf?.text?.length,
      part: this.part, isMiddle: this.isMiddle };
    if (this.isMiddle) return this.go(this.rest);
    if (this.leaf?.kind === "paragraph" && PERHAPS_DELIMITERS.test(this.rest) && this.leaf.text.includes("|")) return;
    this.line(this.rest);
  }

  takeBack() {
    const { trial } = this;
    if (!trial) return;
    for (const node of trial.added) node.remove();
    Object.assign(this, { containers: trial.containers, leaf: trial.leaf, part: trial.part, isMiddle: trial.isMiddle });
    if (this.leaf?.kind === "paragraph" && this.leaf.text.length !== trial.length) {
      this.leaf.text = this.leaf.text.slice(0, trial.length);
      this.leaf.isDrawn = false;
    }
    this.trial = null;
  }

  add(parent, node) {
    parent.append(node);
    this.trial?.added.push(node);
    return node;
  }

  // --- one line ---------------------------------------------------------------------------------------------------

  // `isPiece`: this is only the beginning or the middle of a line.
  line(line, isPiece = false) {
    this.isPiece = isPiece;
    if (this.isMiddle) this.go(line);
    else this.whole(line);
    this.isMiddle = isPiece;
  }

  // Reads the rest of a line whose beginning has already been read.
  go(text) {
    if (this.leaf?.kind === "code") this.codeLine(text);
    else this.words(text, "");
  }

  whole(line) {
    let rest = this.leaf?.kind === "code" ? line : line.replaceAll("\t", "    ");
    let depth = 0;
    for (const container of this.containers) {
      if (container.kind === "quote") {
        const found = QUOTE.exec(rest);
        if (!found) break;
        rest = rest.slice(found[0].length);
      } else if (indentOf(rest) >= container.indent) rest = rest.slice(container.indent);
      else if (!isBlank(rest)) break;
      depth += 1;
    }
    if (depth < this.containers.length) {
      if (this.leaf?.kind === "paragraph" && !isBlank(rest) && !this.begins(rest)) return this.words(rest, "\n");
      this.close();
      this.containers.length = depth;
    }
    if (this.leaf?.kind === "code") return this.inCode(rest);
    if (isBlank(rest)) return this.close();
    this.block(this.open(rest));
  }

  begins(rest) {
    return HEADING.test(rest) || FENCE.test(rest) || QUOTE.test(rest) || RULE.test(rest) || ITEM.test(rest);
  }

  // Opens quotations and list items; returns what is inside them.
  open(rest) {
    while (this.containers.length < DEEPEST) {
      const quote = QUOTE.exec(rest);
      const item = quote || RULE.test(rest) ? null : ITEM.exec(rest);
      // A list can interrupt a paragraph only if it starts at 1 and its first item is not empty.
      if (item && this.leaf?.kind === "paragraph" && (!item[3] || /^(?!1[.)])\d/.test(item[2]))) return rest;
      if (!quote && !item) return rest;
      this.close();
      if (quote) {
        this.containers.push({ kind: "quote", node: this.add(this.place(), element("blockquote")) });
        rest = rest.slice(quote[0].length);
      } else {
        this.containers.push({ kind: "item", indent: item[0].length + (item[3] ? 0 : 1), node: this.item(item) });
        rest = rest.slice(item[0].length);
        const task = TASK.exec(rest);
        if (task) {
          const box = element("span", "task", task[1] === " " ? "☐ " : "☑ ");
          box.setAttribute("role", "img");
          box.setAttribute("aria-label", task[1] === " " ? "to do" : "done");
          this.containers.at(-1).node.className = "to-do";
          this.add(this.containers.at(-1).node, box);
          rest = rest.slice(4);
        }
        if (isBlank(rest)) return rest;
      }
    }
    return rest;
  }

  item(found) {
    const mark = found[2].at(-1);
    const place = this.place();
    const number = parseInt(found[2], 10);
    let list = place.lastElementChild;
    const isSame = list?.dataset.mark === mark;
    if (!isSame || list.childElementCount >= MOST_ITEMS) {
      const start = isSame && !Number.isNaN(number) ? list.start + list.childElementCount : number;
      list = element(Number.isNaN(number) ? "ul" : "ol", isSame ? "more" : "");
      list.dataset.mark = mark;
      if (start !== 1 && !Number.isNaN(start)) list.start = start;
      this.add(place, list);
    }
    return this.add(list, element("li"));
  }

  block(rest) {
    if (isBlank(rest)) return;
    const heading = HEADING.exec(rest);
    const fence = FENCE.exec(rest);
    if (heading) {
      this.close();
      // One level lower, because the page itself has the h1.
      const made = element(`h${Math.min(6, heading[1].length + 1)}`);
      made.append(...inline(rest.slice(heading[0].length, heading[0].length + LONGEST).replace(/(?:^|[ \t])#{1,20}[ \t]*$/, "")));
      this.add(this.place(), made);
    } else if (fence) this.openCode(fence);
    else if (RULE.test(rest)) {
      this.close();
      this.add(this.place(), element("hr"));
    } else if (this.leaf?.kind === "table") this.row(rest);
    else if (!this.trial && this.leaf?.kind === "paragraph" && DELIMITERS.test(rest) && this.openTable(rest)) return;
    else this.words(rest.trimStart(), "\n");
  }

  // --- where nodes go ---------------------------------------------------------------------------------------------

  place() {
    const inner = this.containers.at(-1);
    if (inner) return inner.node;
    if (!this.part || this.part.childElementCount >= MOST_BLOCKS) this.part = this.add(this.root, element("div", "part"));
    return this.part;
  }

  close() {
    this.draw(this.leaf);
    this.leaf = null;
  }

  // --- paragraphs -------------------------------------------------------------------------------------------------

  words(text, between) {
    if (this.leaf?.kind !== "paragraph") {
      this.close();
      this.leaf = this.paragraph("");
    } else if (this.leaf.text.length > LONGEST) {
      this.draw(this.leaf);
      this.leaf = this.paragraph("more");
      between = "";
    }
    this.leaf.text += (this.leaf.text ? between : "") + text;
    this.leaf.isDrawn = false;
  }

  paragraph(className) {
    return { kind: "paragraph", text: "", isDrawn: false, node: this.add(this.place(), element("p", className)) };
  }

  draw(leaf) {
    if (leaf?.kind !== "paragraph" || leaf.isDrawn) return;
    leaf.node.replaceChildren(...inline(leaf.text.trimEnd()));
    leaf.isDrawn = true;
  }

  // --- code -------------------------------------------------------------------------------------------------------

  openCode([, fence, info]) {
    this.close();
    const language = info.trim().split(/\s/, 1)[0].slice(0, 30);
    const code = element("code");
    const leaf = { kind: "code", fence, code, node: null, lines: 0, size: 0, said: [] };
    const pre = element("pre", "", code);
    pre.tabIndex = 0;
    pre.setAttribute("role", "region");
    pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
    const copy = copyButton(() => leaf.said.join("\n"), "Copy this code");
    this.add(this.place(), element("div", "code", element("div", "code-head", element("span", "", language || "text"), copy), pre));
    this.leaf = leaf;
  }

  inCode(rest) {
    const { leaf } = this;
    const found = /^ {0,3}(`{3,}|~{3,})[ \t]*$/.exec(rest);
    if (found && found[1][0] === leaf.fence[0] && found[1].length >= leaf.fence.length) {
      if (!this.trial) this.leaf = null;
      return;
    }
    this.codeLine(rest);
  }

  codeLine(text) {
    const { leaf } = this;
    if (this.trial) return void this.add(leaf.node ?? leaf.code, document.createTextNode(text));
    if (this.isMiddle) leaf.said.push(leaf.said.pop() + text);
    else leaf.said.push(text);
    if (!leaf.node || leaf.lines % CODE_LINES === 0 || leaf.size > LONGEST) {
      leaf.node = element("span", "block");
      leaf.code.append(leaf.node);
      leaf.size = 0;
    }
    const shown = this.isPiece ? text : `${text}\n`;
    leaf.node.append(shown);
    leaf.size += shown.length;
    leaf.lines += 1;
  }

  // --- tables -----------------------------------------------------------------------------------------------------

  openTable(delimiters) {
    const lines = this.leaf.text.split("\n");
    const header = cellsOf(lines.pop());
    const sides = cellsOf(delimiters).map((cell) => {
      const [left, right] = [cell.trim().startsWith(":"), cell.trim().endsWith(":")];
      return right ? (left ? "centre" : "right") : "";
    });
    if (!header.length || sides.length !== header.length) return false;
    if (lines.length) {
      this.leaf.text = lines.join("\n");
      this.leaf.isDrawn = false;
      this.draw(this.leaf);
    } else this.leaf.node.remove();
    this.leaf = { kind: "table", header, sides, body: null };
    this.table();
    return true;
  }

  table() {
    const { leaf } = this;
    const body = element("tbody");
    const head = element("tr", "", ...leaf.header.map((cell, index) => {
      const made = element("th", leaf.sides[index], ...inline(cell.trim()));
      made.scope = "col";
      return made;
    }));
    const holder = element("div", "table", element("table", "", element("thead", "", head), body));
    holder.tabIndex = 0;
    holder.setAttribute("role", "region");
    holder.setAttribute("aria-label", "Table");
    leaf.body = body;
    this.add(this.place(), holder);
  }

  row(line) {
    const { leaf } = this;
    if (leaf.body.childElementCount >= MOST_ITEMS && !this.trial) this.table();
    const cells = cellsOf(line).slice(0, leaf.header.length);
    while (cells.length < leaf.header.length) cells.push("");
    const made = cells.map((cell, index) => element("td", leaf.sides[index], ...inline(cell.trim().slice(0, LONGEST))));
    this.add(leaf.body, element("tr", "", ...made));
  }
}
