"use strict";
// Times in the viewer's zone, values of charts on hover, and live updates.
// Pages work without it.
(() => {
  const FORMS = {
    minute: { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" },
    second: {
      month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
    },
    clock: { hour: "2-digit", minute: "2-digit" },
    day: { month: "short", day: "numeric" },
  };
  const formats = new Map();
  for (const [name, form] of Object.entries(FORMS)) {
    formats.set(name, new Intl.DateTimeFormat(undefined, form));
    formats.set(`${name} of another year`, new Intl.DateTimeFormat(undefined, { year: "numeric", ...form }));
  }
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";

  function showLocalTimes(within) {
    for (const time of within.querySelectorAll("time.local")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const form = time.dataset.form in FORMS ? time.dataset.form : "minute";
      const dated = form !== "clock" && at.getFullYear() !== new Date().getFullYear();
      const format = formats.get(dated ? `${form} of another year` : form);
      time.title = time.dateTime.replace("T", " ").replace("Z", " UTC");
      time.textContent = format.format(at);
    }
    for (const name of within.querySelectorAll(".zone")) name.textContent = zone;
  }

  // Empty fields stay out of the URL.
  document.addEventListener("formdata", (event) => {
    if (event.target.method !== "get") return;
    for (const [name, value] of Array.from(event.formData)) {
      if (value === "") event.formData.delete(name);
    }
  });

  function withLocalTime(text) {
    return text.replace(/^(\d{4}-\d\d-\d\d) (\d\d:\d\d) UTC/, (_, day, clock) =>
      formats.get("minute").format(new Date(`${day}T${clock}Z`)));
  }

  // Charts: the line beside the title describes the column under the pointer.
  function lineOf(target) {
    const figure = target instanceof Element ? target.closest(".chart") : null;
    return figure ? figure.querySelector(".chart-about") : null;
  }
  document.addEventListener("pointerover", (event) => {
    const line = lineOf(event.target);
    if (!line) return;
    const column = event.target.closest(".col");
    const title = column ? column.querySelector("title") : null;
    line.textContent = title ? withLocalTime(title.textContent) : line.dataset.about;
  });
  document.addEventListener("pointerout", (event) => {
    const line = lineOf(event.target);
    if (line && lineOf(event.relatedTarget) !== line) line.textContent = line.dataset.about;
  });

  // A place in the page that survives its replacement: the path of child numbers from an element.
  function pathTo(element, from) {
    const path = [];
    for (let at = element; at !== from; at = at.parentElement) {
      path.unshift(Array.prototype.indexOf.call(at.parentElement.children, at));
    }
    return path;
  }
  const follow = (path, from) => path.reduce((at, index) => at && at.children[index], from);

  function focusAgain(focused, path, made) {
    if (!focused) return;
    const same = (element) =>
      element && element.tagName === focused.tagName &&
      element.getAttribute("href") === focused.getAttribute("href");
    let found = follow(path, made);
    if (focused.id && made.querySelector("#" + CSS.escape(focused.id))) {
      found = made.querySelector("#" + CSS.escape(focused.id));
    } else if (!same(found)) {
      found = Array.from(made.querySelectorAll(focused.tagName)).find(same) || found;
    }
    if (found) found.focus({ preventScroll: true });
  }

  // `:target` is lost when the element is replaced.
  function markTarget() {
    for (const element of document.querySelectorAll(".target")) element.classList.remove("target");
    const { hash } = new URL(location.href);
    const id = /%(?![0-9a-f]{2})/i.test(hash) ? "" : decodeURIComponent(hash.slice(1));
    const target = document.getElementById(id);
    if (target) target.classList.add("target");
  }

  function replace(id, html) {
    const old = document.getElementById(id);
    if (!old) return;
    const parsed = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
    if (!parsed || parsed.id !== id) return;
    const made = document.importNode(parsed, true);
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const path = focused ? pathTo(focused, old) : [];
    for (const details of old.querySelectorAll("details[data-key]")) {
      const again = made.querySelector(`details[data-key="${CSS.escape(details.dataset.key)}"]`);
      if (again) again.open = details.open;
    }
    const scrolled = Array.from(old.querySelectorAll(".scroll"), (at) => [at.scrollLeft, at.scrollTop]);
    showLocalTimes(made);
    old.replaceWith(made);
    made.querySelectorAll(".scroll").forEach((element, index) => {
      if (scrolled[index]) [element.scrollLeft, element.scrollTop] = scrolled[index];
    });
    focusAgain(focused, path, made);
    markTarget();
  }

  // A click is lost if its element is replaced while the button is down.
  let pressed = false;
  const waiting = new Map();
  function release() {
    pressed = false;
    for (const [id, html] of waiting) replace(id, html);
    waiting.clear();
  }
  addEventListener("pointerdown", () => { pressed = true; }, true);
  // After the click. That of the window: an element loses its focus when another one is pressed.
  for (const name of ["pointerup", "pointercancel", "blur"]) {
    addEventListener(name, (event) => {
      if (name !== "blur" || event.target === window) setTimeout(release);
    }, true);
  }

  function status(connected, text) {
    const shown = document.getElementById("live");
    if (!shown || shown.textContent === text) return;
    shown.className = connected ? "live on" : "live off";
    shown.textContent = text;
  }

  const saysLogin = () => document.querySelector("#live a") !== null;

  function showLogin(root) {
    const shown = document.getElementById("live");
    if (!shown || saysLogin()) return;
    status(false, "Session ended: ");
    const link = document.createElement("a");
    link.href = `${root}/login?next=${encodeURIComponent(location.pathname + location.search)}`;
    link.textContent = "log in again";
    shown.append(link);
  }

  // An event source does not say why it was refused.
  async function isLoggedOut(address) {
    try {
      return (await fetch(address, { method: "HEAD", cache: "no-store" })).status === 401;
    } catch {
      return false;
    }
  }

  // The browser reconnects unless the server refused; then we do, with growing delays.
  let wait = 2000;
  function connect() {
    const { root, path } = document.body.dataset;
    const query = new URLSearchParams(location.search);
    query.set("page", path);
    const address = `${root}/events?${query}`;
    const events = new EventSource(address);
    events.addEventListener("open", () => {
      wait = 2000;
      status(true, "Live");
    });
    events.addEventListener("fragment", (event) => {
      const { id, html } = JSON.parse(event.data);
      if (pressed) waiting.set(id, html);
      else replace(id, html);
    });
    let ended = false;
    events.addEventListener("error", async () => {
      if (!saysLogin()) status(false, "Not connected");
      if (await isLoggedOut(address)) {
        events.close();
        showLogin(root);
      }
      if (ended || events.readyState !== EventSource.CLOSED) return;
      ended = true;
      setTimeout(connect, wait);
      wait = Math.min(2 * wait, 60000);
    });
    addEventListener("pagehide", () => events.close(), { once: true });
  }

  showLocalTimes(document);
  addEventListener("hashchange", markTarget);
  if (document.body.dataset.live) connect();
  // A page from the browser's back cache has lost its stream.
  addEventListener("pageshow", (event) => {
    if (event.persisted && document.body.dataset.live) connect();
  });
})();
