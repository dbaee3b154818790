"use strict";
(() => {
  const { events, version } = document.body.dataset;
  if (events === undefined) return;
  const told = document.getElementById("live");
  const kept = new Set(["open", "hidden", "value", "data-was"]);
  const near = 8;
  let source = null;
  let known = version;

  const key = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id : "");
  const alike = (a, b) => a && a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);

  // A log is a window on a text that grows: what left it at its beginning is removed, what is new is appended.
  const moveOn = (old, fresh) => {
    const before = [...old.childNodes].map((line) => line.textContent);
    const after = [...fresh.childNodes];
    const follows = (gone) => before.length - gone <= after.length
      && before.slice(gone).every((text, at) => text === after[at].textContent);
    const overlap = () => {
      let gone = 0;
      while (!follows(gone)) gone += 1;
      return gone;
    };
    let gone = overlap();
    if (gone === before.length && gone > 1) { // the last line may have been longer than it was by then
      before.pop();
      old.lastChild.remove();
      gone = overlap();
    }
    const atEnd = old.scrollHeight - old.scrollTop - old.clientHeight < near;
    const height = old.scrollHeight;
    for (let left = gone; left > 0; left -= 1) old.firstChild.remove();
    if (!atEnd) old.scrollTop -= height - old.scrollHeight;
    old.append(...after.slice(before.length - gone).map((line) => document.importNode(line, true)));
    if (atEnd) old.scrollTop = old.scrollHeight;
  };

  // Elements stay the same, so focus, selection, scrolling and what was unfolded stay, too.
  const morph = (old, fresh) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.hasAttribute("data-kept")) return;
    for (const { name, value } of [...fresh.attributes]) {
      if (!kept.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!kept.has(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    if (old.matches(".log pre")) moveOn(old, fresh);
    else morphChildren(old, fresh);
  };

  const morphChildren = (old, fresh) => {
    const named = new Map([...old.children].filter((each) => each.id).map((each) => [each.id, each]));
    const wanted = new Set([...fresh.children].map((each) => each.id));
    let at = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      while (at && key(at) && !wanted.has(key(at))) {
        const gone = at;
        at = at.nextSibling;
        gone.remove();
      }
      const same = key(next) ? named.get(key(next)) : alike(at, next) ? at : undefined;
      if (same === undefined || same.nodeName !== next.nodeName) {
        old.insertBefore(document.importNode(next, true), at);
      } else {
        if (same === at) at = at.nextSibling;
        else old.insertBefore(same, at);
        morph(same, next);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  };

  // The page as it would be if it was loaded now: its parts as they are, with those that have changed.
  const show = ({ title, order, changed }) => {
    const parse = (text) => new DOMParser().parseFromString(text, "text/html").body.firstElementChild;
    for (const name of ["header", "nav"]) {
      if (name in changed) morph(document.querySelector(name), parse(changed[name]));
    }
    const main = document.getElementById("main");
    for (const section of [...main.children]) if (!order.includes(section.id)) section.remove();
    let before = null;
    for (const id of [...order].reverse()) {
      let section = document.getElementById(id);
      if (section === null) {
        section = document.importNode(parse(changed[id]), true);
        main.insertBefore(section, before);
      } else if (id in changed) morph(section, parse(changed[id]));
      before = section;
    }
    document.title = title;
    document.dispatchEvent(new Event("changed"));
  };

  const connect = () => {
    if (source !== null || document.hidden) return;
    source = new EventSource(`${events}?version=${known}`);
    source.addEventListener("open", () => { told.textContent = "Live"; });
    source.addEventListener("parts", (event) => {
      show(JSON.parse(event.data));
      known = event.lastEventId;
    });
    source.addEventListener("end", (event) => {
      stop();
      document.removeEventListener("visibilitychange", look);
      told.textContent = event.data;
    });
    source.addEventListener("error", () => {
      if (source === null) return;
      const again = source.readyState === EventSource.CONNECTING;
      told.textContent = again ? "The connection was lost; trying again" : "Not live: reload the page";
    });
  };

  const stop = () => {
    if (source !== null) source.close();
    source = null;
  };

  // A browser has few connections to a server for all of its tabs, and nobody looks at a hidden one.
  const look = () => { if (document.hidden) stop(); else connect(); };
  document.addEventListener("visibilitychange", look);
  addEventListener("pagehide", stop);
  connect();
})();
