// Whether the reader likes an answer. Its text goes to the project only after a second click.
import { rate } from "./api.js";
import { button, make, say } from "./dom.js";

export class RatingView {
  element = make("div", { class: "rating", role: "group", "aria-label": "Rate this answer" });
  #answer = null;
  #given = "";

  // answer: an Answer that is complete, or null to show nothing.
  show(answer) {
    if (answer === this.#answer) return;
    this.#answer = answer;
    this.#given = "";
    this.#draw();
  }

  #draw(words = "", act = null) {
    if (!this.#answer?.requestId) return this.element.replaceChildren();
    const choice = (rating, words) =>
      button(words, () => this.#give(rating), { class: "quiet", "aria-pressed": String(this.#given === rating) });
    this.element.replaceChildren(
      choice("up", "Helpful"),
      choice("down", "Not helpful"),
      ...(words ? [make("span", { class: "small", textContent: words })] : []),
      ...(act ? [act] : []),
    );
  }

  async #give(rating, texts = {}) {
    const answer = this.#answer;
    try {
      await rate({ request_id: answer.requestId, rating, ...texts });
    } catch (error) {
      if (this.#answer === answer) this.#draw(error.message);
      return;
    }
    if (this.#answer !== answer) return;
    this.#given = rating;
    const isShared = "consent" in texts;
    const words = isShared ? "Rated, and shared with the project." : "Rated. Neither question nor answer was stored.";
    this.#draw(words, isShared ? null : button("Share both with the project", () => this.#share(rating), { class: "quiet" }));
    say(words);
  }

  #share(rating) {
    const { request, text } = this.#answer;
    const question = request.messages.at(-1).content;
    return this.#give(rating, { consent: true, question: question.slice(0, 20000), answer: text.slice(0, 20000) });
  }
}
