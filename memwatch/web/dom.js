// Elements. Text enters a page as text alone: nothing here reads markup.

/** An element with attributes and children; an attribute that is null is left out. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Writes a text where it is another: a selection or a focus in it stays. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The same for an attribute. */
export function mark(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

/** Makes the children those of a list, each known by its key, in its order; nothing is moved that stands where it should. */
export function keyed(parent, list, key, make, update) {
  const known = (parent.known ??= new Map());
  const wanted = new Set();
  let at = parent.firstElementChild;
  for (const item of list) {
    const name = key(item);
    wanted.add(name);
    let node = known.get(name);
    if (!node) {
      node = make(item);
      known.set(name, node);
    }
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
    update(node, item);
  }
  for (const [name, node] of known) {
    if (!wanted.has(name)) {
      node.gone?.();
      node.remove();
      known.delete(name);
    }
  }
}

/** Parts of a whole as a bar: [name of a colour, bytes, what it is]. */
export function bar(node, parts, whole) {
  const shown = parts.filter(([, size]) => size > 0);
  keyed(
    node,
    shown,
    ([name, , title]) => `${name} ${title}`,
    () => element("span", { class: "part" }),
    (part, [name, size, title]) => {
      part.style.width = `${Math.min(100, (100 * size) / Math.max(1, whole))}%`;
      part.style.background = `var(--${name})`;
      mark(part, "title", title);
    },
  );
}
