/** Elements of the page. What comes from outside is text, never HTML. */

export function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  text = "",
  style = "",
): HTMLElementTagNameMap[K] {
  const element = document.createElement(name);
  element.textContent = text;
  if (style) element.className = style;
  return element;
}

export function setLanguage(element: Element, language: string | null): void {
  if (language) element.setAttribute("lang", language);
  element.setAttribute("dir", "auto");
}
