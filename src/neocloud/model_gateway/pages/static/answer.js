// One answer of one model: asks for it, waits for a model that sleeps, can be stopped.
import { Refused, chat, models, respond } from "./api.js";

const LONGEST_WAIT_MS = 15 * 60 * 1000;
const LOOK_AGAIN_MS = 2000;
const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });

export class Answer {
  text = "";
  thoughts = "";
  sources = []; // of an answer from documents: {filename, score, text}
  state = "asking"; // then "waking", "writing"; at the end "done", "stopped" or "failed"
  error = null;
  usage = null;
  pieces = 0;
  firstMs = null;
  totalMs = 0;
  wakesInSeconds = 0;
  cutShort = false;
  requestId = ""; // of the response, for a rating
  #abort = new AbortController();

  // request: what the model is asked, without `stream`. changed: called whenever there is something to show.
  constructor(request, { project, pricing, changed }) {
    Object.assign(this, { request, project, pricing, changed });
  }

  get isRunning() {
    return ["asking", "waking", "writing"].includes(this.state);
  }

  stop() {
    this.#abort.abort();
  }

  async run() {
    const signal = this.#abort.signal;
    const giveUpAt = performance.now() + LONGEST_WAIT_MS;
    try {
      while (!(await this.#ask(signal))) {
        if (performance.now() > giveUpAt) throw this.error;
        await this.#wake(signal);
        signal.throwIfAborted();
      }
      this.#enter("done");
    } catch (error) {
      this.error = error;
      this.#enter(signal.aborted ? "stopped" : "failed");
      if (!signal.aborted && !(error instanceof Refused)) throw error;
    }
  }

  // Whether it answered; false: the model has to wake first.
  async #ask(signal) {
    const began = performance.now();
    this.#enter("asking");
    try {
      const started = (id) => { this.requestId = id; };
      const send = this.request.input ? respond : chat;
      const chunks = send(this.request, { project: this.project, signal, began: started });
      for await (const chunk of chunks) this.#take(chunk, began);
      return true;
    } catch (error) {
      this.error = error;
      if (error.status === 503 && error.retryAfter && !this.text) return false;
      throw error;
    } finally {
      this.totalMs = performance.now() - began;
    }
  }

  #take(chunk, began) {
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.sources) this.sources = chunk.sources;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason === "length") this.cutShort = true;
    const said = choice.delta?.content ?? "";
    const thought = choice.delta?.reasoning_content ?? choice.delta?.reasoning ?? "";
    if (!said && !thought) return;
    this.firstMs ??= performance.now() - began;
    this.totalMs = performance.now() - began;
    this.pieces += 1;
    this.text += said;
    this.thoughts += thought;
    this.#enter("writing");
  }

  // Until the gateway thinks it is ready, or it is seen to be.
  async #wake(signal) {
    const readyAt = performance.now() + this.error.retryAfter * 1000;
    let lookAt = performance.now();
    while (!signal.aborted && performance.now() < readyAt) {
      this.wakesInSeconds = Math.ceil((readyAt - performance.now()) / 1000);
      this.#enter("waking");
      if (performance.now() >= lookAt) {
        lookAt = performance.now() + LOOK_AGAIN_MS;
        const status = await this.#status(signal);
        if (status === "ready") break;
        if (status === "stopped") throw this.error;
      }
      await pause(250, signal);
    }
    await pause(250, signal); // it may be ready for others, but not take this one yet
  }

  async #status(signal) {
    try {
      return (await models(signal)).find((model) => model.id === this.request.model)?.status;
    } catch (error) {
      if (error.status === 401) throw error;
      return undefined; // the next question tells
    }
  }

  #enter(state) {
    this.state = state;
    this.changed(this);
  }
}
