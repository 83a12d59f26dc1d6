// Elements of the page: found by id, or made.

export function element<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`index.html lacks #${id}`);
  return found as T;
}

export function made<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  text = "",
): HTMLElementTagNameMap[K] {
  const fresh = document.createElement(tag);
  fresh.className = className;
  fresh.textContent = text;
  return fresh;
}

export function option(value: string, text: string): HTMLOptionElement {
  const fresh = made("option", "", text);
  fresh.value = value;
  return fresh;
}
