// Mermaid from this site, and only where a reader comes to see a diagram.
//
// The theme fetches Mermaid from another host unless `window.mermaid` exists. This script is that object: it keeps the
// theme's options, and imports the build that lies beside it when the first diagram comes near the screen or the page is
// about to be printed. Until then a diagram is its text.
(() => {
  const NEAR = "1200px";
  const PATIENCE_MS = 5000; // without a diagram being drawn
  const READABLE = "640px"; // below this a wide drawing's words are too small
  let options = {};
  let loading;

  // Mermaid now puts the diagram's id before the ids of its arrow heads, so the theme's rules for them match nothing and
  // they stay black in the dark palette. The colours are the theme's own.
  const colour = "var(--md-mermaid-sequence-message-line-color)";
  const heads = `
    [id$="-arrowhead"] path, [id$="-filled-head"] path, [id$="ArrowHead"] path { fill: ${colour}; stroke: ${colour}; }
    [id$="-crosshead"] path { stroke: ${colour}; }
    [id$="-sequencenumber"] circle { fill: var(--md-mermaid-sequence-number-bg-color); }
    .actor-line { stroke: var(--md-mermaid-sequence-actor-line-color); }`;

  // A browser imports no module from a disk; the offline edition has the same Mermaid as a script.
  const { src } = document.currentScript;
  const classic = () =>
    new Promise((resolve, reject) => {
      const own = window.mermaid;
      const script = document.createElement("script");
      script.src = new URL("mermaid.min.js", src);
      script.onerror = reject;
      script.onload = () => {
        resolve({ default: window.mermaid });
        window.mermaid = own;
      };
      document.head.append(script);
    });

  const load = async () => {
    const { default: mermaid } = await (location.protocol === "file:" ? classic() : import("./mermaid.esm.min.mjs"));
    mermaid.initialize({ startOnLoad: false, ...options, themeCSS: (options.themeCSS ?? "") + heads });
    return mermaid;
  };

  let printing = false;
  const waiting = new Map(); // element of each diagram that is not drawn: what lets it be drawn
  const show = (place) => {
    waiting.get(place)?.();
    waiting.delete(place);
    watch.unobserve(place);
  };
  const watch = new IntersectionObserver(
    (seen) => seen.forEach((one) => one.isIntersecting && show(one.target)),
    { rootMargin: NEAR },
  );

  window.mermaid = {
    initialize(given) {
      options = given;
    },
    async render(id, text) {
      // The theme says what is to be drawn and not where; of two equal texts either element will do.
      const place = [...document.querySelectorAll("pre.mermaid")].find(
        (one) => one.textContent === text && !waiting.has(one) && !one.dataset.near,
      );
      if (place) {
        if (!printing) {
          await new Promise((near) => {
            waiting.set(place, near);
            watch.observe(place);
          });
        }
        place.dataset.near = "1";
      }
      loading ??= load();
      const drawn = await (await loading).render(id, text);
      return { ...drawn, svg: drawn.svg.replace(/max-width: ([\d.]+)px;/, `$& min-width: min($1px, ${READABLE});`) };
    },
  };

  const showAll = () => {
    printing = true; // what the theme gives later is drawn at once
    [...waiting.keys()].forEach(show);
  };
  addEventListener("beforeprint", showAll);
  addEventListener("afterprint", () => (printing = false));
  // A browser does not wait for what it was told before printing; the key that asks for it can.
  addEventListener("keydown", async (event) => {
    const left = () => document.querySelectorAll("pre.mermaid").length;
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.key.toLowerCase() !== "p" || !left()) return;
    event.preventDefault();
    let count = left();
    for (let since = performance.now(); count && performance.now() < since + PATIENCE_MS; ) {
      showAll();
      await new Promise((next) => setTimeout(next, 50));
      if (left() < count) [count, since] = [left(), performance.now()];
    }
    window.print();
  });
})();
