// What a person with a screen reader or a shaky hand would stumble over.
const found = [];
const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) found.push(`two have the id ${id}`);
for (const image of document.querySelectorAll("img")) if (!image.alt) found.push("an image without words");
if (document.querySelectorAll("h1").length !== 1) found.push("not one first heading");
if (document.querySelectorAll("main").length !== 1 || !document.querySelector("nav")) found.push("landmarks are missing");
if (!document.documentElement.lang || !document.title) found.push("no language or no title");
for (const one of document.querySelectorAll("[tabindex]")) if (one.tabIndex > 0) found.push("an order of its own");
for (const one of document.querySelectorAll("[aria-labelledby], [aria-controls], label[for]"))
  for (const name of ["aria-labelledby", "aria-controls", "for"])
    if (one.hasAttribute(name) && !document.getElementById(one.getAttribute(name))) found.push(`${name} leads nowhere`);
for (const one of document.querySelectorAll("[role=region], [role=group], article, nav, form"))
  if (!one.getAttribute("aria-label") && !one.hasAttribute("aria-labelledby")) found.push(`${one.className} has no name`);
for (const one of document.querySelectorAll("button, select, textarea, summary")) {
  const box = one.getBoundingClientRect();
  if (box.width && (box.height < 24 || box.width < 24)) found.push(`${one.textContent} is too small: ${box.width}x${box.height}`);
}
return found;
