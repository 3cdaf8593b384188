// The only script of the labs that a page loads by itself: it puts a button where a lab may stand, and fetches the
// lab when a reader presses it.
(() => {
  const base = new URL("./", document.currentScript.src);
  const style = document.createElement("style");
  style.textContent = `
    .bookproof-lab-button { border: 0.1rem solid; border-radius: 0.1rem; color: var(--md-typeset-a-color); cursor: pointer;
      font-size: 0.7rem; font-weight: 600; padding: 0.3em 0.9em; }
    .bookproof-lab-button:hover { background: var(--md-accent-fg-color--transparent); }
    .bookproof-lab-button:focus-visible { outline: 0.1rem solid var(--md-accent-fg-color); outline-offset: 0.1rem; }
    .bookproof-lab-button:disabled { cursor: default; opacity: 0.5; }`;
  document.documentElement.append(style); // a theme that swaps pages takes from the head what the next page lacks

  const labels = {
    run: ["Run", "Edit"],
    knobs: ["Turn the knobs"],
    crash: ["Crash it", "Edit"],
    mutation: ["Break it", "Repair"],
    agree: ["Run this page's examples here"],
  };

  function arm(place) {
    const kind = place.dataset.bookproofLab;
    place.dataset.bookproofArmed = "";
    place.textContent = "";
    const said = document.createElement("span");
    said.setAttribute("role", "status");
    for (const label of labels[kind] ?? []) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "bookproof-lab-button";
      button.textContent = label;
      if (kind !== "agree") button.setAttribute("aria-label", `${label}: ${place.dataset.name}`);
      button.addEventListener("click", () => {
        said.textContent = " Loading the lab";
        import(new URL("lab.mjs", base)).then(
          (lab) => lab.open(place, label),
          () => (said.textContent = " The lab could not be loaded. Press the button to try again."),
        );
      });
      place.append(button, " ");
    }
    place.append(said);
  }

  const look = () =>
    document.querySelectorAll("[data-bookproof-lab]:not([data-bookproof-armed])").forEach(arm);
  const follow = () => {
    look();
    new MutationObserver(look).observe(document.body, { childList: true }); // a theme may swap pages without a load
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", follow);
  else follow();
})();
