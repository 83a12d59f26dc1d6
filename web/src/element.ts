// Finds elements of the page by id, and makes new ones.

export function getElement<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`index.html lacks #${id}`);
  return found as T;
}

export function makeElement<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  text = "",
): HTMLElementTagNameMap[K] {
  const fresh = document.createElement(tag);
  fresh.className = className;
  fresh.textContent = text;
  return fresh;
}

export function makeOption(value: string, text: string): HTMLOptionElement {
  const fresh = makeElement("option", "", text);
  fresh.value = value;
  return fresh;
}
