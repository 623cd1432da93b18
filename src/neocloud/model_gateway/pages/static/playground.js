// The columns and the one composer below them. The conversation is in this page only.
import { firstNames, pairOf } from "./catalogue.js";
import { CodeDialog } from "./code_dialog.js";
import { Column } from "./column.js";
import { DocumentChoice } from "./documents.js";
import { button, byId, say } from "./dom.js";

export class Playground {
  #models = [];
  #turns = []; // {prompt, answers: by column}
  #columns = [];
  #wasRunning = false;
  #shown = null; // the column that a narrow page shows

  // account: project(), signedOut(), refresh() the models
  constructor(account) {
    this.account = account;
    this.prompt = byId("prompt");
    this.documents = new DocumentChoice(() => this.#changed());
    byId("tools").append(this.documents.element);
    byId("composer").addEventListener("submit", (event) => { event.preventDefault(); this.#send(); });
    this.prompt.addEventListener("keydown", (event) => this.#key(event));
    this.prompt.addEventListener("input", () => this.#grow());
    byId("stop").addEventListener("click", () => this.#stop());
    byId("compare").addEventListener("click", () => this.#toggleCompare());
    byId("new-chat").addEventListener("click", () => this.#clear());
    const code = new CodeDialog(() => this.#requests());
    byId("view-code").addEventListener("click", () => code.open(account.project()));
  }

  offer(models, asked, compare) {
    this.#models = models;
    for (const column of this.#columns) column.offer(models);
    if (!this.#columns.length && models.length) this.choose(...firstNames(models, asked, compare));
    for (const id of ["send", "compare", "view-code"]) byId(id).disabled = !models.length;
  }

  // So many columns with these models.
  choose(...names) {
    while (this.#columns.length > names.length) this.#remove(this.#columns.at(-1));
    for (const [place, name] of names.entries()) {
      if (this.#columns[place]) this.#columns[place].choose(name);
      else this.#add(name);
    }
    this.#changed();
  }

  focus() {
    this.prompt.focus();
  }

  #add(name) {
    const column = new Column(this.#models, name, {
      changed: () => this.#changed(),
      edit: (turn) => this.#edit(turn),
      example: (words) => this.#example(words),
      signedOut: () => this.account.signedOut(),
      refresh: () => this.account.refresh(),
      project: () => this.account.project(),
      store: () => this.documents.storeId,
    });
    this.#columns.push(column);
    byId("columns").append(column.element);
    column.show(this.#turns);
  }

  #remove(column) {
    for (const turn of this.#turns) {
      turn.answers.get(column)?.stop();
      turn.answers.delete(column);
    }
    this.#columns = this.#columns.filter((each) => each !== column);
    column.element.remove();
  }

  #toggleCompare() {
    const [first, second] = this.#columns;
    if (second) {
      this.#remove(second);
    } else {
      const tuned = pairOf(first.model, this.#models);
      const beside = [tuned?.id, tuned?.parent].find((name) => name && name !== first.model.id);
      this.#add(beside ?? this.#models.find((model) => model.id !== first.model.id)?.id ?? first.model.id);
    }
    this.#changed();
  }

  #send() {
    const words = this.prompt.value.trim();
    if (!words || this.#isRunning() || !this.#columns.length) return;
    if (!this.#columns.every((column) => column.parameters.areValid())) return;
    this.prompt.value = "";
    this.#grow();
    this.#turns = [...this.#turns, { prompt: words, answers: new Map() }];
    for (const column of this.#columns) {
      column.ask(this.#turns);
      column.show(this.#turns);
    }
    this.#changed();
  }

  #example(words) {
    this.prompt.value = words;
    this.#send();
  }

  // On a narrow page, tabs choose which of two columns is seen.
  #showTabs() {
    if (!this.#columns.includes(this.#shown)) this.#shown = this.#columns.at(-1) ?? null;
    const tabs = byId("column-tabs");
    tabs.hidden = this.#columns.length < 2;
    const names = this.#columns.map((column) => column.model?.id ?? "");
    while (tabs.children.length > names.length) tabs.lastChild.remove();
    for (const [place, name] of names.entries()) {
      const choose = () => { this.#shown = this.#columns[place]; this.#showTabs(); };
      if (!tabs.children[place]) tabs.append(button("", choose, { role: "tab" }));
      const tab = tabs.children[place];
      if (tab.textContent !== name) tab.textContent = name;
      tab.setAttribute("aria-selected", String(this.#columns[place] === this.#shown));
    }
    for (const column of this.#columns) column.element.toggleAttribute("data-shown", column === this.#shown);
  }

  #stop() {
    for (const answer of this.#answers()) answer.stop();
    this.focus();
  }

  // Back to this question: it and what came after is taken away, its words can be changed.
  #edit(turn) {
    const place = this.#turns.indexOf(turn);
    this.#stop();
    this.#turns = this.#turns.slice(0, place);
    for (const column of this.#columns) column.show(this.#turns);
    this.prompt.value = turn.prompt;
    this.#grow();
    this.focus();
    this.#changed();
  }

  #clear() {
    this.#stop();
    this.#turns = [];
    for (const column of this.#columns) column.show(this.#turns);
    this.#changed();
  }

  #answers = () => this.#turns.flatMap((turn) => [...turn.answers.values()]);
  #isRunning = () => this.#answers().some((answer) => answer.isRunning);

  // What each column would be asked now: with the words in the composer, or as last time.
  #requests() {
    const words = this.prompt.value.trim() || (this.#turns.length ? "" : "Hello!");
    return this.#columns.map((column) => column.request(this.#turns, words));
  }

  #changed() {
    const isRunning = this.#isRunning();
    const hadFocus = document.activeElement;
    byId("send").hidden = isRunning;
    byId("stop").hidden = !isRunning;
    if (hadFocus === byId("stop") && !isRunning) this.focus();
    byId("compare").setAttribute("aria-pressed", String(this.#columns.length > 1));
    byId("columns").dataset.count = this.#columns.length;
    this.#showTabs();
    if (this.#wasRunning && !isRunning) say("The response is complete.");
    this.#wasRunning = isRunning;
  }

  #key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.#send();
    }
  }

  #grow() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight + 2}px`;
  }
}
