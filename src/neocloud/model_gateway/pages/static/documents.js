// Which vector store answers come from: a choice that is shown where the project has any.
import { vectorStores } from "./api.js";
import { make } from "./dom.js";

export class DocumentChoice {
  constructor(changed) {
    this.select = make("select", { id: "documents", on: { change: changed } });
    this.element = make("label", { class: "documents", hidden: true }, make("span", { textContent: "Documents" }), this.select);
  }

  get storeId() {
    return this.element.hidden ? "" : this.select.value;
  }

  // Reads the stores of the project; the chosen one stays. Who may not read any is offered none.
  async refresh(project) {
    let stores = [];
    try {
      stores = (await vectorStores(project)).filter((store) => store.status !== "expired" && store.file_counts.completed);
    } catch (error) {
      if (error.status === 401) throw error;
    }
    const chosen = this.select.value;
    const options = stores.map((store) => make("option", { value: store.id, textContent: store.name || store.id, selected: store.id === chosen }));
    this.select.replaceChildren(make("option", { value: "", textContent: "None" }), ...options);
    this.element.hidden = !stores.length;
  }
}
