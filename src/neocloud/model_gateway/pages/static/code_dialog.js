// Shows a column's present request as code, to be copied.
import { LANGUAGES, snippet } from "./code.js";
import { button, byId, make, say } from "./dom.js";

const COPIED_MS = 1500;

export class CodeDialog {
  #language = "curl";
  #requests = [];
  #project = "";

  constructor(requests) {
    this.requests = requests;
    byId("code-tabs").append(...LANGUAGES.map(([language, words]) => this.#tab(language, words)));
    byId("code-tabs").addEventListener("keydown", (event) => this.#arrow(event));
    byId("code-column").addEventListener("change", () => this.#show());
    byId("code-close").addEventListener("click", () => byId("code").close());
    byId("code-copy").addEventListener("click", () => this.#copy());
  }

  open(project) {
    this.#requests = this.requests();
    this.#project = project;
    byId("code-column").replaceChildren(
      ...this.#requests.map((request, place) => make("option", { value: place, textContent: `${place + 1}: ${request.model}` })),
    );
    byId("code-column-choice").hidden = this.#requests.length < 2;
    this.#show();
    byId("code").showModal();
    this.#selected().focus();
  }

  #tab(language, words) {
    const choose = () => { this.#language = language; this.#show(); };
    return button(words, choose, { id: `code-tab-${language}`, role: "tab", "aria-controls": "code-panel" });
  }

  #selected = () => byId(`code-tab-${this.#language}`);

  #arrow(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const names = LANGUAGES.map(([language]) => language);
    this.#language = names.at((names.indexOf(this.#language) + step) % names.length);
    this.#show();
    this.#selected().focus();
  }

  #show() {
    for (const tab of byId("code-tabs").children) {
      const isSelected = tab === this.#selected();
      tab.setAttribute("aria-selected", String(isSelected));
      tab.tabIndex = isSelected ? 0 : -1;
    }
    const request = this.#requests[Number(byId("code-column").value)];
    const place = { baseUrl: `${location.origin}/v1`, project: this.#project };
    byId("code-text").textContent = snippet(this.#language, request, place);
    byId("code-panel").setAttribute("aria-labelledby", `code-tab-${this.#language}`);
  }

  async #copy() {
    const copy = byId("code-copy");
    try {
      await navigator.clipboard.writeText(byId("code-text").textContent);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(byId("code-text"));
      copy.textContent = "Press Ctrl and C";
    }
    say(copy.textContent);
    setTimeout(() => { copy.textContent = "Copy"; }, COPIED_MS);
  }
}
