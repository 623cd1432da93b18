// The documents that an answer was given: name, score and an excerpt of each.
import { make } from "./dom.js";

const EXCERPT = 400;

export function sourcesView(sources) {
  const words = sources.length === 1 ? "1 source" : `${sources.length} sources`;
  return make("details", { class: "sources" }, make("summary", { textContent: words }), make("ol", {}, ...sources.map(source)));
}

function source({ filename, score, text }) {
  const excerpt = text.length > EXCERPT ? `${text.slice(0, EXCERPT)}…` : text;
  return make(
    "li", {},
    make("div", { class: "from" }, make("span", { class: "file", textContent: filename }), make("span", { class: "score", textContent: score.toFixed(2), title: "Similarity to the question" })),
    make("p", { textContent: excerpt }),
  );
}
