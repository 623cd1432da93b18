// Makes and finds elements. Text only ever becomes text, never markup.

export const byId = (id) => document.getElementById(id);

// properties: "class", "on" (listeners by event); what an element has as a property is set as one.
export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const button = (words, act, properties = {}) =>
  make("button", { type: "button", textContent: words, ...properties, on: { click: act } });

// For who cannot see what changed.
export function say(words) {
  byId("said").textContent = words;
}
