// Mermaid from this site, and only where a page shows a diagram.
//
// The theme fetches Mermaid from another host unless `window.mermaid` exists. This script is that object: it keeps the
// theme's options and imports the build that lies beside it when the first diagram is to be drawn.
(() => {
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

  const load = async () => {
    const { default: mermaid } = await import("./mermaid.esm.min.mjs");
    mermaid.initialize({ startOnLoad: false, ...options, themeCSS: (options.themeCSS ?? "") + heads });
    return mermaid;
  };

  window.mermaid = {
    initialize(given) {
      options = given;
    },
    async render(id, text) {
      loading ??= load();
      return (await loading).render(id, text);
    },
  };
})();
