// Texts that are too pale for what is behind them, by the rule of WCAG 2 (AA).
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const channel = (value) => { const part = value / 255; return part <= .03928 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4; };
const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const found = rgba(getComputedStyle(at).backgroundColor);
    if (found[3] === 255) return found;
  }
  return [255, 255, 255];
};
const ratio = (one, other) => { const [a, b] = [light(one), light(other)].sort((x, y) => y - x); return (a + .05) / (b + .05); };
const found = [];
for (const node of document.querySelectorAll("body *")) {
  const style = getComputedStyle(node);
  if (!node.checkVisibility({ visibilityProperty: true }) || node.disabled || node.closest(".label, :disabled")) continue;
  const back = behind(node);
  if ([...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) {
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const got = ratio(rgba(style.color), back);
    if (got < (isLarge ? 3 : 4.5)) found.push(`${node.localName}.${node.className} ${got.toFixed(2)}: ${node.textContent.slice(0, 30)}`);
  }
  if (node.placeholder) {
    const got = ratio(rgba(getComputedStyle(node, "::placeholder").color), back);
    if (got < 4.5) found.push(`placeholder ${node.id} ${got.toFixed(2)}`);
  }
}
return found;
