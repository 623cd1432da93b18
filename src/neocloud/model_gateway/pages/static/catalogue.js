// Models that may be called: which stand beside each other at first, and the cards.
import { button, make } from "./dom.js";

export const STATES = { ready: "Ready", cold: "Asleep", starting: "Starting", stopped: "Stopped" };

// The names for one or two columns. What was asked for goes first; else a fine-tuned model beside its base.
export function firstNames(models, asked, compare) {
  const byName = new Map(models.map((model) => [model.id, model]));
  const wanted = [asked, compare].filter((name) => byName.has(name));
  if (wanted.length === 2) return [compare, asked];
  const model = byName.get(wanted[0]);
  const tuned = model ? pairOf(model, models) : newest(models.filter((each) => byName.has(each.parent)));
  if (tuned) return [tuned.parent, tuned.id];
  return [model?.id ?? models[0]?.id].filter(Boolean);
}

// Of a model and its base, the fine-tuned one.
export function pairOf(model, models) {
  if (models.some((each) => each.id === model.parent)) return model;
  return newest(models.filter((each) => each.parent === model.id));
}

// Models that answer in words; the others embed texts or rank them.
export const generates = (model) => (model.task ?? "generate") === "generate";

const KINDS = { embed: "Embedding model", rerank: "Ranking model" };

const newest = (models) => models.toSorted((one, other) => other.created - one.created)[0];

export function showCards(place, models, { play, compare }) {
  place.replaceChildren(...models.map((model) => card(model, models, { play, compare })));
  if (!models.length) {
    place.append(
      make("p", { class: "nothing" }, "No models are available yet. Deploy one with ", make("code", { textContent: "neo deploy MODEL" }), "."),
    );
  }
}

function card(model, models, { play, compare }) {
  const hasParent = models.some((each) => each.id === model.parent);
  return make(
    "article", { class: "card model" },
    make("header", {}, make("h2", { textContent: model.id }), chip(model.status)),
    make("p", { class: "kind", textContent: model.parent ? `Fine-tuned from ${model.parent}` : KINDS[model.task] ?? "Base model" }),
    make("dl", { class: "facts" }, ...facts(model)),
    make(
      "footer", {},
      generates(model) ? button("Go to playground", () => play(model.id), { class: "strong" }) : null,
      hasParent ? button("Compare with base", () => compare(model.id, model.parent)) : null,
    ),
  );
}

export const chip = (status) => make("span", { class: `chip ${status}`, textContent: STATES[status] ?? status });

function facts(model) {
  const { pricing } = model;
  const price = (name) => `$${pricing[name]}`;
  const prices = !pricing || pricing.charge === "by_hour"
    ? [["Price", pricing ? "by the hour" : "unpriced"]]
    : [["Input", price("input")], ["Cached input", price("cached_input")], ["Output", price("output")]];
  const pairs = [
    ["Context", model.max_model_len ? `${model.max_model_len.toLocaleString("en")} tokens` : "not known"],
    ["Licence", model.license || "not stated"],
    ...prices,
  ];
  return pairs.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value })));
}
