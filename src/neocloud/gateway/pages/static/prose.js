// A model's text with its code, bold words and lists; as elements, so that no answer can become markup.
import { make } from "./dom.js";

const FENCE = /^```(.*)$/;
const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*)/;

export function prose(text) {
  const blocks = [];
  let lines = [];
  let code = null;
  const flush = () => {
    const words = lines.join("\n").trim();
    if (words) blocks.push(make("p", {}, ...inline(words)));
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

const codeBlock = (lines) => make("pre", { tabIndex: 0 }, make("code", { textContent: lines.join("\n") }));

const inline = (text) =>
  text.split(INLINE).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return make("code", { textContent: part.slice(1, -1) });
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return make("strong", { textContent: part.slice(2, -2) });
    return part;
  });
