// When the theme's script starts, and what the theme leaves out: the reader's own marks on the six lessons, which stay in
// this browser's storage; the list of keys; and a way for the keyboard to the drawer, out of the search, and along a
// drawing that is wider than its box.

(() => {
  const KEY = "sovereign-agent.lessons";
  const WHOLE = 16; // characters of a name that a narrow table does not break

  // The configuration's base is relative to the page that was loaded first.
  const base = new URL(`${JSON.parse(document.getElementById("__config").textContent).base}/`, location.href);

  const read = () => {
    try {
      const kept = JSON.parse(localStorage.getItem(KEY));
      return new Set(Array.isArray(kept) ? kept : []);
    } catch {
      return new Set();
    }
  };
  const write = (done) => {
    try {
      if (done.size) localStorage.setItem(KEY, JSON.stringify([...done].sort()));
      else localStorage.removeItem(KEY);
    } catch {
      // A browser that keeps nothing forgets with the page.
    }
  };
  const query = document.querySelector("[data-md-component=search-query]");
  /** Whether an event is one of these keys, without a modifier and not typed into a field. */
  const pressed = (keys, { type, key, target, ctrlKey, metaKey, altKey } = {}) =>
    type === "keydown" && keys.includes(key) && !ctrlKey && !metaKey && !altKey
    && !target.closest?.("input, textarea, select, [contenteditable]");
  const element = (name, className, text = "") => {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    return made;
  };

  // The theme's script takes a slow phone a second or two in which it does not answer. A page is read, scrolled and left
  // without it, so it starts with the reader's first move, or when there is something that only it can show.
  function waitForMove(theme) {
    const SETTLED_MS = 200;
    const parsed = new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
    const inSight = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && start());
    let started = false;

    // The theme reads what stands in the field when it is ready: what is typed right after this key is not lost.
    const searches = (event) => query && pressed(["/", "s", "f"], event);
    const search = (event) => {
      if (!searches(event)) return;
      query.focus();
      event.preventDefault();
    };
    addEventListener("keydown", search);

    /** Once; a key to another page that was the first move is pressed again when the theme hears it. */
    async function start(move) {
      if (started) return;
      started = true;
      inSight.disconnect();
      if (searches(move)) query.focus(); // it may have come before this script
      await parsed;
      // When it starts, the theme closes the drawer and the search, which may be what the reader has just opened.
      const toggles = document.querySelectorAll(".md-toggle");
      const keep = (event) => event.isTrusted || event.target.checked || event.preventDefault();
      toggles.forEach((one) => one.addEventListener("click", keep));
      const script = document.createElement("script");
      script.src = theme.src;
      script.onload = () => {
        setTimeout(() => toggles.forEach((one) => one.removeEventListener("click", keep)), SETTLED_MS);
        document$.next(document); // the theme waits for the end of a parse that is over
        removeEventListener("keydown", search);
        if (!pressed(["p", "n", ",", "."], move)) return;
        move.target.dispatchEvent(new KeyboardEvent("keydown", { key: move.key, bubbles: true, cancelable: true }));
      };
      theme.after(script);
    }

    firstMove.then(start);
    addEventListener("beforeprint", () => start());
    const asked = new URL(location.href).searchParams;
    if (asked.has("h") || asked.has("q")) start(); // words to mark in the page, or to search for
    else document.querySelectorAll("pre.mermaid").forEach((one) => inSight.observe(one));
    addEventListener("load", () => {
      if (started || location.protocol === "file:") return;
      document.head.append(Object.assign(document.createElement("link"), { rel: "prefetch", as: "script", href: theme.src }));
    });
  }
  const theme = document.querySelector("script[type='site/theme']");
  if (theme) waitForMove(theme);

  /** The end of a lesson: one button, and what it did. */
  function arm(place) {
    const [button, said] = place.children;
    const lesson = place.dataset.siteLesson;
    const show = () => {
      const done = read().has(lesson);
      button.textContent = done ? "Done. Mark as not done" : "Mark this lesson as done";
      button.classList.toggle("md-button--primary", !done);
    };
    button.addEventListener("click", () => {
      const done = read();
      if (!done.delete(lesson)) done.add(lesson);
      write(done);
      said.textContent = done.has(lesson)
        ? "Marked as done, in this browser only. The list of lessons shows it."
        : "The mark is taken away.";
      show();
    });
    show();
    place.hidden = false;
  }

  /** A list of lessons: which are done, how many, and a way to forget them. */
  function mark(list) {
    list.dataset.marked = "";
    const show = () => {
      list.querySelectorAll(".site-mark").forEach((one) => one.remove());
      list.parentElement.querySelectorAll(".site-progress").forEach((one) => one.remove());
      const done = read();
      if (!done.size) return;
      const counted = new Set();
      for (const link of list.querySelectorAll("a[href]")) {
        const lesson = link.pathname.startsWith(base.pathname) ? link.pathname.slice(base.pathname.length) : "";
        if (!done.has(lesson) || counted.has(lesson)) continue;
        counted.add(lesson);
        link.after(element("span", "site-mark", " \u2713 done"));
      }
      const told = element("p", "site-progress", `${counted.size} of 6 lessons done, by your own marks in this browser. `);
      const clear = element("button", "site-link", "Clear the marks");
      clear.type = "button";
      clear.addEventListener("click", () => {
        write(new Set());
        show();
        list.tabIndex = -1;
        list.focus();
      });
      told.append(clear);
      list.after(told);
    };
    show();
  }

  const KEYS = [
    ["/ or s or f", "search"],
    ["\u2191 \u2193 and Enter", "choose a result"],
    ["p or ,", "previous page"],
    ["n or .", "next page"],
    ["Tab", "next link or button"],
    ["Esc", "close the search or this list"],
    ["?", "this list"],
  ];
  let keys;

  function help() {
    if (!keys) {
      keys = element("dialog", "site-keys-list md-typeset");
      keys.setAttribute("aria-labelledby", "site-keys-title");
      const title = element("h2", "", "Keyboard shortcuts");
      title.id = "site-keys-title";
      const list = element("dl", "");
      for (const [key, does] of KEYS) {
        const name = element("dt", "");
        name.append(element("kbd", "", key));
        list.append(name, element("dd", "", does));
      }
      const close = element("button", "md-button", "Close");
      close.type = "button";
      close.addEventListener("click", () => keys.close());
      keys.append(title, list, close);
      document.body.append(keys);
    }
    if (!keys.open) keys.showModal();
  }

  addEventListener("keydown", (event) => {
    if (pressed(["?"], event)) help();
  });

  // The theme's label opens the drawer for a finger only; a button does for a keyboard too.
  const drawer = document.getElementById("__drawer");
  const label = document.querySelector(".md-header__button[for=__drawer]");
  const opener = element("button", `${label.className} site-drawer`);
  opener.type = "button";
  opener.setAttribute("aria-label", "Navigation");
  opener.append(...label.childNodes);
  opener.addEventListener("click", () => drawer.click());
  const tellDrawer = () => opener.setAttribute("aria-expanded", String(drawer.checked));
  drawer.addEventListener("change", () => {
    tellDrawer();
    uncover();
    if (!drawer.checked) return;
    const side = document.querySelector(".md-sidebar--primary");
    side.tabIndex = -1;
    side.focus();
  });
  tellDrawer();
  label.replaceWith(opener);

  // In the drawer one list lies over another, and both over the page: the keyboard gets to what is seen, and by the
  // labels that a finger has from list to list.
  const narrow = matchMedia("(max-width: 76.234375em)");
  function uncover() {
    for (const one of document.querySelectorAll("[data-covered]")) {
      one.inert = false;
      one.removeAttribute("data-covered");
    }
    for (const one of document.querySelectorAll("[data-pressed]")) {
      one.setAttribute("tabindex", one.dataset.pressed);
      one.removeAttribute("role");
      one.removeAttribute("data-pressed");
    }
    if (!drawer.checked || !narrow.matches) return;
    const side = document.querySelector(".md-sidebar--primary");
    for (const one of side.querySelectorAll("label[for^=__]:not([for=__drawer])")) {
      one.dataset.pressed = one.getAttribute("tabindex") ?? "-1";
      one.tabIndex = 0;
      one.role = "button";
    }
    const open = [...side.querySelectorAll(".md-nav__toggle:checked ~ .md-nav")].at(-1);
    if (open) cover(open, ".md-nav--primary");
    cover(side, "body");
  }

  /** Take everything around an element, up to one that holds it, from the keyboard. */
  function cover(place, top) {
    for (let one = place; one.parentElement && !one.matches(top); one = one.parentElement) {
      for (const other of one.parentElement.children) {
        if (other === one || other.inert || other.matches("input, script, .md-overlay")) continue;
        other.inert = true;
        other.setAttribute("data-covered", "");
      }
    }
  }

  narrow.addEventListener("change", uncover);
  addEventListener("change", ({ target }) => {
    if (!target.matches(".md-nav__toggle")) return;
    uncover();
    const [link, title] = ["link", "title"].map((part) => `label.md-nav__${part}[for="${target.id}"]`);
    if (drawer.checked) document.querySelector(target.checked ? title : link)?.focus();
  });
  addEventListener("keydown", (event) => {
    if (!["Enter", " "].includes(event.key) || !event.target.matches?.(".md-sidebar--primary label")) return;
    event.preventDefault();
    event.stopPropagation(); // the theme would press it again
    event.target.click();
  }, true);

  // Escape closes the drawer, and leaves the search where the reader was before it.
  let before;
  query?.addEventListener("focus", ({ relatedTarget }) => {
    if (!relatedTarget?.closest(".md-search")) before = relatedTarget;
  });
  addEventListener("keydown", ({ key }) => {
    if (key !== "Escape") return;
    if (drawer.checked) {
      drawer.click();
      opener.focus();
    } else if (document.activeElement?.closest(".md-search")) {
      const place = before?.isConnected ? before : document.querySelector(".md-content h1");
      if (!place) return;
      if (place.tabIndex < 0) place.tabIndex = -1;
      setTimeout(() => place.focus({ preventScroll: true })); // after the theme, which takes the focus away
    }
  }, true);

  // A drawing wider than its box can be moved by keyboard.
  const reach = new ResizeObserver((boxes) => {
    for (const { target } of boxes) {
      const wide = target.scrollWidth > target.clientWidth;
      const number = [...document.querySelectorAll(".mermaid")].indexOf(target) + 1;
      const told = { tabindex: "0", role: "region", "aria-label": `Diagram ${number}, moves sideways` };
      for (const [name, value] of Object.entries(told)) {
        if (wide) target.setAttribute(name, value);
        else target.removeAttribute(name);
      }
    }
  });

  // The theme's own parts: a dialog without a name, and one landmark of the same name for each listing.
  document.querySelector("[data-md-component=search]")?.setAttribute("aria-label", "Search");
  const nameListings = () => {
    for (const one of document.querySelectorAll(".md-code__nav:not([role])")) one.setAttribute("role", "presentation");
  };
  const watchDrawings = () => {
    for (const one of document.querySelectorAll("div.mermaid:not([data-reach])")) {
      one.dataset.reach = ""; // to observe it again would be to measure it again
      reach.observe(one);
    }
  };
  const tend = () => {
    nameListings();
    watchDrawings();
  };
  new MutationObserver(tend).observe(document.body, { childList: true, subtree: true });

  const look = () => {
    tend();
    for (const one of document.querySelectorAll("td code, th code")) {
      if (one.textContent.length <= WHOLE) one.classList.add("site-whole");
    }
    document.querySelectorAll(".site-done[hidden]").forEach(arm);
    document.querySelectorAll(".site-lessons:not([data-marked])").forEach(mark);
    for (const button of document.querySelectorAll(".site-keys[hidden]")) {
      button.addEventListener("click", help);
      button.hidden = false;
    }
  };
  look();
  new MutationObserver(look).observe(document.body, { childList: true }); // the theme swaps pages without a load
})();
