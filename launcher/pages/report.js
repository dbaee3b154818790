"use strict";
(() => {
  const box = document.getElementById("search");
  const found = document.getElementById("found");
  const logs = [...document.querySelectorAll(".log")];
  const texts = new Map(logs.map((log) => [log, [...log.querySelectorAll("pre > span")]]));

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

  const search = () => {
    const words = box.value.toLowerCase();
    let lines = 0;
    let ranks = 0;
    for (const [log, spans] of texts) {
      let hits = 0;
      for (const span of spans) {
        plain(span);
        const fits = words !== "" && span.textContent.toLowerCase().includes(words);
        span.hidden = words !== "" && !fits;
        if (fits) {
          emphasize(span, words);
          hits += 1;
        }
      }
      log.hidden = words !== "" && hits === 0;
      if (words !== "") log.open = hits > 0;
      else log.open = log.hasAttribute("data-first");
      lines += hits;
      ranks += hits > 0 ? 1 : 0;
    }
    found.textContent = words === "" ? "" : `${lines} lines of ${ranks} ranks`;
  };

  const toEnd = (log) => { const pre = log.querySelector("pre"); pre.scrollTop = pre.scrollHeight; };
  for (const log of logs) {
    log.addEventListener("toggle", () => toEnd(log));
    if (log.open) toEnd(log);
  }

  if (box) box.addEventListener("input", search);

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
