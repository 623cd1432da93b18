// One model with its parameters and its side of the conversation.
import { Answer } from "./answer.js";
import { chip } from "./catalogue.js";
import { button, make } from "./dom.js";
import { Parameters } from "./parameters.js";
import { TurnView } from "./turn.js";

const NEAR_END = 80;
const EXAMPLES = ["What can you help me with?", "Explain what a token is, in two sentences.", "Write a haiku about a bank."];
let made = 0;

// The same question to /v1/responses, which searches the documents for it.
function fromDocuments(model, input, { max_tokens, ...values }, store) {
  const tools = [{ type: "file_search", vector_store_ids: [store], max_num_results: 4 }];
  const limit = max_tokens ? { max_output_tokens: max_tokens } : {};
  return { model, input, tools, include: ["file_search_call.results"], ...limit, ...values };
}

export class Column {
  #views = new Map(); // by turn
  #models = [];
  #toDraw = new Set(); // turns

  // page: changed(), edit(turn), example(words), signedOut(), refresh(), project(), store(), for all columns
  constructor(models, name, page) {
    this.page = page;
    const id = `model-${(made += 1)}`;
    this.select = make("select", { id, on: { change: () => { this.#showState(); page.changed(); } } });
    this.state = make("span", { class: "state" });
    this.parameters = new Parameters(page.changed);
    this.thread = make("div", { class: "thread", tabIndex: 0, role: "log", "aria-live": "polite", "aria-label": "Conversation" });
    this.element = make(
      "section", { class: "column" },
      make("header", {}, make("label", { htmlFor: id, class: "unseen", textContent: "Model" }), this.select, this.state),
      this.parameters.element,
      this.thread,
    );
    this.offer(models, name);
    this.show([]);
  }

  get model() {
    return this.#models.find((model) => model.id === this.select.value);
  }

  // Which models there are now; the chosen one stays.
  offer(models, name = this.select.value) {
    this.#models = models;
    this.select.replaceChildren(
      ...models.map((model) => make("option", { value: model.id, textContent: model.id, selected: model.id === name })),
    );
    this.#showState();
  }

  choose(name) {
    this.select.value = name;
    this.#showState();
  }

  #showState() {
    const model = this.model;
    const kind = model?.parent ? make("span", { class: "on", textContent: `on ${model.parent}` }) : null;
    this.state.replaceChildren(...[kind, model ? chip(model.status) : null].filter(Boolean));
    this.element.setAttribute("aria-label", model?.id ?? "No model");
  }

  // What the model is asked at the end of these turns; `prompt` is not yet one of them.
  request(turns, prompt = "") {
    const messages = [];
    if (this.parameters.systemPrompt) messages.push({ role: "system", content: this.parameters.systemPrompt });
    for (const [place, turn] of turns.entries()) {
      const answer = turn.answers.get(this);
      const isLast = place === turns.length - 1 && !prompt;
      if (isLast) messages.push({ role: "user", content: turn.prompt });
      else if (answer?.text) {
        messages.push({ role: "user", content: turn.prompt }, { role: "assistant", content: answer.text });
      }
    }
    if (prompt) messages.push({ role: "user", content: prompt });
    const store = this.page.store();
    const model = this.select.value;
    return store ? fromDocuments(model, messages, this.parameters.values(), store) : { model, messages, ...this.parameters.values() };
  }

  // Answers the last of these turns, again if it was.
  async ask(turns) {
    const turn = turns.at(-1);
    turn.answers.get(this)?.stop();
    turn.answers.delete(this);
    const answer = new Answer(this.request(turns), {
      project: this.page.project(),
      pricing: this.model?.pricing,
      changed: () => {
        if (turn.answers.get(this) !== answer) return;
        this.#draw(turn);
        this.page.changed();
      },
    });
    turn.answers.set(this, answer);
    await answer.run();
    if (answer.error?.status === 401) this.page.signedOut();
    else if (this.model?.status !== "ready") this.page.refresh(); // it may have woken
  }

  show(turns) {
    if (!turns.length) {
      this.#views.clear();
      const examples = EXAMPLES.map((words) => button(words, () => this.page.example(words)));
      this.thread.replaceChildren(
        make("div", { class: "nothing" }, "Ask something below.", make("div", { class: "examples" }, ...examples)),
      );
      return;
    }
    const gone = [...this.#views.keys()].filter((turn) => !turns.includes(turn));
    for (const turn of gone) this.#views.delete(turn);
    for (const [place, turn] of turns.entries()) {
      if (!this.#views.has(turn)) this.#views.set(turn, this.#view(turn, turns, place));
      this.#views.get(turn).show(turn.answers.get(this));
    }
    this.thread.replaceChildren(...turns.map((turn) => this.#views.get(turn).element));
    this.thread.scrollTop = this.thread.scrollHeight;
  }

  #view(turn, turns, place) {
    return new TurnView(turn, this.select.value, {
      edit: () => this.page.edit(turn),
      retry: () => this.ask(turns.slice(0, place + 1)),
    });
  }

  // Once a frame, however fast a model writes.
  #draw(turn) {
    if (this.#toDraw.has(turn)) return;
    this.#toDraw.add(turn);
    requestAnimationFrame(() => {
      this.#toDraw.delete(turn);
      this.#follow(() => this.#views.get(turn)?.show(turn.answers.get(this)));
    });
  }

  // Stays at the end if it was there; who scrolled up reads on.
  #follow(act) {
    const { thread } = this;
    const isAtEnd = thread.scrollHeight - thread.scrollTop - thread.clientHeight < NEAR_END;
    act();
    if (isAtEnd) thread.scrollTop = thread.scrollHeight;
  }
}
