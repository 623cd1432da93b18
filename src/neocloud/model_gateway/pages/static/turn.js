// One question and its answer, as a column shows them.
import { button, make } from "./dom.js";
import { figures } from "./figures.js";
import { prose } from "./prose.js";
import { RatingView } from "./rating.js";
import { sourcesView } from "./sources.js";
import { headline } from "./words.js";

export class TurnView {
  // acts: edit(), retry(), for this turn
  constructor(turn, modelName, acts) {
    this.acts = acts;
    this.rating = new RatingView();
    this.body = make("div", { class: "text" });
    this.sources = make("div", { class: "sources-place", hidden: true });
    this.notice = make("div", { class: "notice-place" });
    this.figures = make("dl", { class: "figures", hidden: true });
    this.retry = button("Retry", acts.retry, { class: "quiet", hidden: true });
    this.name = make("span", { class: "model-name", textContent: modelName });
    this.answer = make(
      "div", { class: "answer" },
      make("div", { class: "says" }, this.name, this.retry),
      this.body, this.sources, this.notice, this.figures, this.rating.element,
    );
    this.element = make(
      "article", { class: "turn" },
      make(
        "div", { class: "question" },
        make("p", { class: "text", textContent: turn.prompt }),
        button("Edit", acts.edit, { class: "quiet", "aria-label": "Edit this message and ask again" }),
      ),
      this.answer,
    );
  }

  // answer: an Answer, or undefined where this column was not asked.
  show(answer) {
    if (!answer) {
      this.notice.replaceChildren(button("Ask this model too", this.acts.retry));
      return;
    }
    this.name.textContent = answer.request.model;
    this.answer.setAttribute("aria-busy", String(answer.isRunning));
    this.retry.hidden = answer.isRunning;
    this.#text(answer);
    this.#sources(answer);
    this.rating.show(answer.state === "done" ? answer : null);
    this.notice.replaceChildren(...notices(answer));
    this.figures.hidden = answer.isRunning || answer.firstMs === null;
    if (!this.figures.hidden) this.figures.replaceChildren(...figures(answer).map(figure));
  }

  // Once for an answer, so that a list that was opened stays open.
  #sources(answer) {
    this.sources.hidden = !answer.sources.length;
    if (this.shownSources === answer.sources) return;
    this.shownSources = answer.sources;
    this.sources.replaceChildren(...(answer.sources.length ? [sourcesView(answer.sources)] : []));
  }

  #text(answer) {
    const blocks = prose(answer.text);
    if (answer.thoughts) {
      const thoughts = make("details", { class: "thoughts", open: !answer.text });
      thoughts.append(make("summary", { textContent: "Thoughts" }), make("p", { textContent: answer.thoughts }));
      blocks.unshift(thoughts);
    }
    this.body.replaceChildren(...blocks);
    this.body.classList.toggle("writing", answer.state === "writing");
  }
}

function notices(answer) {
  if (answer.state === "asking") return [make("p", { class: "waiting" }, make("span", { class: "dots", "aria-hidden": "true" }), "Waiting for the first token")];
  if (answer.state === "waking") {
    const words = `The model is starting, which takes about ${answer.wakesInSeconds} s. The response follows automatically.`;
    return [make("p", { class: "notice waking", textContent: words })];
  }
  if (answer.state === "stopped") return [make("p", { class: "small", textContent: "Stopped." })];
  if (answer.state === "failed") {
    return [make("div", { class: "notice problem", role: "alert" }, make("strong", { textContent: headline(answer.error, answer.pieces > 0) }), make("span", { textContent: answer.error.message }))];
  }
  if (answer.cutShort) return [make("p", { class: "small", textContent: "Stopped at the max tokens limit." })];
  return [];
}

const figure = ([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }));
