"use strict";
(() => {
  const known = new Set();

  const plain = (line) => {
    for (const mark of line.querySelectorAll("mark")) mark.replaceWith(mark.textContent);
    line.normalize();
  };

  const emphasize = (line, words) => {
    const text = line.textContent;
    const parts = [];
    let from = 0;
    for (let at = text.toLowerCase().indexOf(words); at >= 0; at = text.toLowerCase().indexOf(words, from)) {
      const mark = document.createElement("mark");
      mark.textContent = text.slice(at, at + words.length);
      parts.push(text.slice(from, at), mark);
      from = at + words.length;
    }
    line.replaceChildren(...parts, text.slice(from));
  };

  // `again`: the lines have changed, not the words; what was folded stays as it is.
  const search = (again) => {
    const words = document.getElementById("search").value.toLowerCase();
    let lines = 0;
    let ranks = 0;
    for (const log of known) {
      let hits = 0;
      for (const span of log.querySelectorAll("pre > span")) {
        plain(span);
        const fits = words !== "" && span.textContent.toLowerCase().includes(words);
        span.hidden = words !== "" && !fits;
        if (fits) {
          emphasize(span, words);
          hits += 1;
        }
      }
      const appeared = log.hidden && hits > 0;
      log.hidden = words !== "" && hits === 0;
      if (again && !appeared) { /* as it is */ }
      else if (words !== "") log.open = hits > 0;
      else log.open = log.hasAttribute("data-first");
      lines += hits;
      ranks += hits > 0 ? 1 : 0;
    }
    document.getElementById("found").textContent = words === "" ? "" : `${lines} lines of ${ranks} ranks`;
  };

  const toEnd = (log) => { const pre = log.querySelector("pre"); pre.scrollTop = pre.scrollHeight; };
  const collect = () => {
    for (const log of known) if (!log.isConnected) known.delete(log);
    for (const log of document.querySelectorAll(".log")) {
      if (known.has(log)) continue;
      known.add(log);
      log.addEventListener("toggle", () => toEnd(log));
      if (log.open) toEnd(log);
    }
  };
  collect();

  // `distlaunch serve` replaces what has changed.
  document.addEventListener("input", (event) => { if (event.target.id === "search") search(false); });
  document.addEventListener("changed", () => {
    collect();
    const now = document.getElementById("search");
    if (now && now.value !== "") search(true);
  });

  const printed = [...document.querySelectorAll("details.printed")];
  addEventListener("beforeprint", () => printed.forEach((each) => { each.dataset.was = each.open; each.open = true; }));
  addEventListener("afterprint", () => printed.forEach((each) => { each.open = each.dataset.was === "true"; }));

  const copy = document.getElementById("copy");
  if (copy && navigator.clipboard) {
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById("command").textContent);
      copy.textContent = "Copied";
    });
  }
})();
