// What may be set of a question, beside the question: one form for each column.
import { make } from "./dom.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, value: "" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, value: 512 },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01, value: "" },
  { name: "seed", label: "Seed", step: 1, value: "" },
];

let made = 0;

export class Parameters {
  constructor(changed) {
    const id = `parameters-${(made += 1)}`;
    this.summary = make("span", { class: "chosen" });
    this.inputs = Object.fromEntries(FIELDS.map((field) => [field.name, numberInput(field, id)]));
    this.system = make("textarea", { id: `${id}-system`, rows: 2, placeholder: "You are a helpful assistant." });
    this.stop = make("textarea", { id: `${id}-stop`, rows: 2, placeholder: "None", spellcheck: false });
    this.element = make(
      "details", { class: "parameters" },
      make("summary", {}, make("span", { textContent: "Parameters" }), this.summary),
      make(
        "div", { class: "fields" },
        labelled("System prompt", this.system, "wide"),
        ...FIELDS.map((field) => labelled(field.label, this.inputs[field.name])),
        labelled("Stop sequences, one per line", this.stop, "wide"),
      ),
    );
    this.element.addEventListener("input", () => { this.#summarize(); changed(); });
    this.#summarize();
  }

  // As the API knows them; what is left empty is left to the model.
  values() {
    const values = {};
    for (const { name } of FIELDS) {
      const input = this.inputs[name];
      if (input.value !== "" && input.validity.valid) values[name] = input.valueAsNumber;
    }
    const stop = this.stop.value.split("\n").filter((line) => line !== "");
    if (stop.length) values.stop = stop;
    return values;
  }

  get systemPrompt() {
    return this.system.value.trim();
  }

  // Shows the first one that is wrong.
  areValid() {
    const wrong = Object.values(this.inputs).find((input) => !input.validity.valid);
    if (!wrong) return true;
    this.element.open = true;
    return wrong.reportValidity();
  }

  #summarize() {
    const words = Object.entries(this.values()).map(([name, value]) =>
      name === "stop" ? `${value.length} stop` : `${name.replaceAll("_", " ")} ${value}`,
    );
    if (this.systemPrompt) words.unshift("system prompt");
    this.summary.textContent = words.join(" · ");
  }
}

function numberInput({ name, min = "", max = "", step, value }, id) {
  return make("input", { id: `${id}-${name}`, type: "number", min, max, step, value, placeholder: "Model default" });
}

const labelled = (words, input, kind = "") =>
  make("div", { class: `field ${kind}` }, make("label", { htmlFor: input.id, textContent: words }), input);
