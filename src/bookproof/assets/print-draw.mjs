// The page to print draws all its diagrams as soon as it is open: paper cannot wait until somebody comes near.
//
// `document.body.dataset.drawn` says how many were drawn, once nothing is left to do.
const places = [...document.querySelectorAll("pre.mermaid")];
let drawn = 0;
if (places.length) {
  const { default: mermaid } = await import("../assets/mermaid/mermaid.esm.min.mjs");
  mermaid.initialize({ startOnLoad: false, theme: "neutral", fontFamily: getComputedStyle(document.body).fontFamily });
  for (const [number, place] of places.entries()) {
    const { svg } = await mermaid.render(`diagram-${number}`, place.textContent);
    const picture = document.createElement("div");
    picture.className = "bookproof-drawn";
    picture.innerHTML = svg;
    place.replaceWith(picture);
    drawn += 1;
  }
}
document.body.dataset.drawn = String(drawn);
