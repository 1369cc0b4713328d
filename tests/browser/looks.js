// What a page looks like to somebody who cannot see it well: texts of low contrast, controls that the Tab key should reach.
({
  contrasts() {
    const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
    const over = ([red, green, blue, alpha = 1], below) =>
      [red, green, blue].map((x, k) => x * alpha + below[k] * (1 - alpha));
    const linear = (x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    const light = (colour) => colour.map((x) => linear(x / 255)).reduce((all, x, k) => all + x * [0.2126, 0.7152, 0.0722][k], 0);
    const ground = (node) => {
      if (!node) return [255, 255, 255];
      return over(parse(getComputedStyle(node).backgroundColor), ground(node.parentElement));
    };
    const opacity = (node) => (node ? Number(getComputedStyle(node).opacity) * opacity(node.parentElement) : 1);
    const hasText = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    const found = new Set();
    for (const node of document.querySelectorAll("body *")) {
      if (!node.checkVisibility() || !hasText(node) || node.closest("title, [aria-disabled=true], :disabled")) continue;
      const style = getComputedStyle(node);
      const below = ground(node);
      const own = parse(node.closest("svg") ? style.fill : style.color);
      const ink = over([...own.slice(0, 3), (own[3] ?? 1) * opacity(node)], below);
      const [high, low] = [light(ink), light(below)].sort((x, y) => y - x);
      const ratio = (high + 0.05) / (low + 0.05);
      if (ratio < 4.5) found.add(`${node.tagName}.${node.className.baseVal ?? node.className} ${ratio.toFixed(2)}: ${node.textContent.slice(0, 30)}`);
    }
    return [...found];
  },

  /** Arrow keys go round inside a table, a grid and a row of tokens: one of its cells is a stop. */
  stops() {
    const all = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")];
    return all.filter((node) => node.checkVisibility() && !node.disabled && !(node.tabIndex < 0 && node.closest("table, .rank-grid, .chip-row")));
  },

  named(node) {
    return `${node.tagName}#${node.id} ${node.textContent.slice(0, 30)}`;
  },
})
