/* The shell of every page: live swaps that hold still when asked to, the connection, keys, definitions. */
"use strict";

(() => {
  const $ = (id) => document.getElementById(id);

  // --- live swaps ---------------------------------------------------------------------------------------
  // Morphing keeps nodes, focus and typed text; what is typed is never replaced.
  Idiomorph.defaults.ignoreActiveValue = true;

  const vitrine = { paused: false, source: null };
  window.vitrine = vitrine;
  const waiting = new Map(); // element → the newest data that it has not shown

  const rows = $("rows");
  let pointing = false;
  const listIsHeld = () => pointing || document.querySelector("tbody.older") !== null;

  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    const target = event.target;
    if (vitrine.paused) {
      event.preventDefault();
      waiting.set(target, event.detail.data);
    } else if (target === rows && listIsHeld()) {
      event.preventDefault();
      waiting.set(target, event.detail.data);
      updateInPlace(event.detail.data);
    } else {
      waiting.delete(target);
    }
  });

  // Rows that are there get their new values; none comes, goes or moves.
  function updateInPlace(data) {
    const template = document.createElement("template");
    template.innerHTML = data;
    let news = 0;
    for (const row of template.content.querySelectorAll("tr")) {
      const old = $(row.id);
      if (old) Idiomorph.morph(old, row.children, { morphStyle: "innerHTML" });
      else news += 1;
    }
    $("held").hidden = news === 0;
    $("held").textContent = `${news} new: they wait while you ${pointing ? "point at the list" : "look at older ones"}`;
  }

  function catchUp() {
    for (const [target, data] of waiting) {
      if (target === rows && listIsHeld()) continue;
      waiting.delete(target);
      htmx.swap(target, data, { swapStyle: "morph:innerHTML" }, { contextElement: target });
    }
    if (rows && !listIsHeld()) $("held").hidden = true;
  }

  if (rows) {
    rows.addEventListener("pointerenter", () => { pointing = true; });
    rows.addEventListener("pointerleave", () => { pointing = false; if (!vitrine.paused) catchUp(); });
  }

  const pause = $("pause");
  function setPaused(paused) {
    vitrine.paused = paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.querySelector("span").textContent = paused ? "Go on" : "Pause";
    $("paused").hidden = !paused;
    if (!paused) catchUp();
    document.dispatchEvent(new CustomEvent("vitrine:pause"));
  }
  pause.hidden = false;
  pause.addEventListener("click", () => setPaused(!vitrine.paused));

  // --- the connection -----------------------------------------------------------------------------------
  // A tick comes about every second; when none comes, or the stream breaks, the page says so.
  const SILENCE_MS = 6000;
  let lastTick = Date.now();

  document.addEventListener("htmx:sseOpen", (event) => {
    const source = event.detail.source;
    document.documentElement.dataset.live = "";
    heard();
    if (source === vitrine.source) {
      document.dispatchEvent(new CustomEvent("vitrine:reconnected"));
      return;
    }
    const again = vitrine.source !== null;
    vitrine.source = source;
    source.addEventListener("tick", heard);
    source.addEventListener("finished", () => location.reload());
    source.addEventListener("points", (message) => {
      document.dispatchEvent(new CustomEvent("vitrine:points", { detail: JSON.parse(message.data) }));
    });
    if (again) document.dispatchEvent(new CustomEvent("vitrine:reconnected"));
  });
  document.addEventListener("htmx:sseError", lost);
  window.setInterval(() => {
    if (vitrine.source && Date.now() - lastTick > SILENCE_MS) lost();
  }, 1000);

  function heard() {
    lastTick = Date.now();
    $("lost").hidden = true;
  }

  let leaving = false;
  window.addEventListener("pagehide", () => { leaving = true; });
  function lost() {
    if (leaving || !$("lost").hidden) return;
    $("lost-since").textContent = new Date(lastTick).toLocaleTimeString();
    $("lost").hidden = false;
  }

  // --- keys ---------------------------------------------------------------------------------------------
  const PAGES = { o: "/", r: "/requests", p: "/replicas" };
  let chord = "";

  function go(path) {
    const link = document.querySelector(`.nav a[href="${path}"], .nav a[href^="${path}?"]`);
    location.assign(link ? link.href : path);
  }

  const list = () => [...document.querySelectorAll("table.rows tbody tr")].filter((row) => row.querySelector("a"));
  let at = null; // id of the chosen row: rows are morphed, ids stay

  function step(by) {
    const all = list();
    if (!all.length) return;
    const old = all.findIndex((row) => row.id === at);
    const now = all[Math.max(0, Math.min(all.length - 1, old + by))];
    at = now.id;
    mark();
    now.querySelector("a").focus({ preventScroll: true });
    now.scrollIntoView({ block: "nearest" });
  }

  function mark() {
    for (const row of list()) row.classList.toggle("at", row.id === at);
  }
  document.addEventListener("htmx:sseMessage", () => { if (at) mark(); });

  const KEYS = {
    "/": () => { $("search").focus(); $("search").select(); },
    "?": () => $("help").showModal(),
    p: () => setPaused(!vitrine.paused),
    j: () => step(1),
    k: () => step(-1),
  };

  const typing = (target) => target.matches("input, select, textarea") || target.isContentEditable;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if ($("help").open) return;
    const wasChord = chord === "g";
    chord = event.key;
    if (wasChord && PAGES[event.key]) {
      event.preventDefault();
      chord = "";
      go(PAGES[event.key]);
    } else if (KEYS[event.key]) {
      event.preventDefault();
      KEYS[event.key]();
    }
  });

  // --- definitions --------------------------------------------------------------------------------------
  // Without script the title attribute shows them; with it, a bubble that appears at once and stays in view.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);
  let described = null;

  function describe(word) {
    if (described === word) return;
    if (described && described.dataset.title) {
      described.title = described.dataset.title;
      delete described.dataset.title;
    }
    described = word;
    tip.hidden = word === null;
    if (word === null) return;
    tip.textContent = word.title;
    word.dataset.title = word.title;
    word.removeAttribute("title");
    const box = word.getBoundingClientRect();
    const left = Math.max(12, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 12));
    const below = box.bottom + 7;
    const above = box.top - tip.offsetHeight - 7;
    tip.style.left = `${left}px`;
    tip.style.top = `${below + tip.offsetHeight > window.innerHeight && above > 0 ? above : below}px`;
  }
  document.addEventListener("pointerover", (event) => describe(event.target.closest?.(".def") ?? null));
  document.addEventListener("scroll", () => describe(null), { passive: true, capture: true });
})();
