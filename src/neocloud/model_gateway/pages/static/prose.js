// A model's text with its code, tables, links, bold words and lists; as elements, so that no answer can become markup.
import { button, make, say } from "./dom.js";

const FENCE = /^```(.*)$/;
const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*|\[[^\]\n]+\]\(https?:\/\/[^\s()<>]+\)|https?:\/\/[^\s()<>"`*\]]+)/;
const NAMED = /^\[([^\]]+)\]\((https?:\/\/\S+)\)$/;
const RULE = /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/;
const COPIED_MS = 1500;

export function prose(text) {
  const blocks = [];
  let lines = [];
  let code = null;
  const flush = () => {
    blocks.push(...passages(lines));
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (FENCE.test(line.trim())) {
      if (code === null) {
        flush();
        code = [];
      } else {
        blocks.push(codeBlock(code));
        code = null;
      }
    } else if (code !== null) code.push(line);
    else if (line.trim() === "") flush();
    else lines.push(line);
  }
  if (code !== null) blocks.push(codeBlock(code));
  flush();
  return blocks;
}

// A table with what is around it, of lines without an empty one.
function passages(lines) {
  const rule = lines.findIndex((line, place) => place > 0 && RULE.test(line.trim()) && isRow(lines[place - 1]) && isRow(line));
  if (rule < 0) return paragraph(lines);
  let end = rule + 1;
  while (end < lines.length && isRow(lines[end])) end += 1;
  const [head, ...rows] = [lines[rule - 1], ...lines.slice(rule + 1, end)].map(cells);
  const row = (tag) => (words) => make("tr", {}, ...words.map((each) => make(tag, {}, ...inline(each))));
  const table = make("table", {}, make("thead", {}, row("th")(head)), make("tbody", {}, ...rows.map(row("td"))));
  const scrolled = make("div", { class: "table", tabIndex: 0 }, table);
  return [...paragraph(lines.slice(0, rule - 1)), scrolled, ...passages(lines.slice(end))];
}

const isRow = (line) => line.includes("|");

// A bar behind a backslash, or within code, belongs to a cell.
const cells = (line) =>
  line.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|(?=(?:[^`]*`[^`]*`)*[^`]*$)/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));

function paragraph(lines) {
  const words = lines.join("\n").trim();
  return words ? [make("p", {}, ...inline(words))] : [];
}

function codeBlock(lines) {
  const text = lines.join("\n");
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      copy.textContent = "Press Ctrl and C";
    }
    say(copy.textContent);
    setTimeout(() => { copy.textContent = "Copy"; }, COPIED_MS);
  }, { class: "quiet copy", "aria-label": "Copy this code" });
  const code = make("code", { textContent: text });
  return make("div", { class: "block" }, copy, make("pre", { tabIndex: 0 }, code));
}

const inline = (text) =>
  text.split(INLINE).flatMap((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return [make("code", { textContent: part.slice(1, -1) })];
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return [make("strong", { textContent: part.slice(2, -2) })];
    const named = NAMED.exec(part);
    if (named) return link(named[2], named[1]);
    if (/^https?:\/\//.test(part)) {
      const url = part.replace(/[.,;:!?]+$/, "");
      return [...link(url, url), part.slice(url.length)];
    }
    return [part];
  });

// With the host behind other words, since a model may be made to hide where a link leads.
function link(url, words) {
  if (!/^https?:\/\//.test(url) || !URL.canParse(url)) return [words];
  const shown = make("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow", textContent: words });
  return words === url ? [shown] : [shown, ` (${new URL(url).host})`];
}
