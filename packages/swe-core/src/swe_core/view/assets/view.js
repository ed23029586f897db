// What every page can do: keys, and following a run that goes on.
"use strict";

const byId = (id) => document.getElementById(id);

// Keys: j and k go through the items of a page, / searches, g and a letter goes to a page, ? explains.
let going = false;
function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (going) {
    going = false;
    document.querySelector(`[data-go="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
  else if (event.key === "/") (byId("filter") ?? byId("search"))?.focus();
  else if (event.key === "g") going = true;
  else if (event.key === "?") byId("keys")?.showModal();
  else return;
  event.preventDefault();
}

function step(by) {
  const items = [...document.querySelectorAll(".item")].filter((item) => item.offsetParent !== null);
  const at = items.findIndex((item) => item.classList.contains("here"));
  const next = items[Math.min(Math.max(at + by, 0), items.length - 1)];
  if (!next) return;
  items[at]?.classList.remove("here");
  next.classList.add("here");
  (next.matches("a, button, summary, [tabindex]") ? next : next.querySelector("a, summary, button"))?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

// A choice that opens a page.
document.addEventListener("change", ({ target }) => {
  if (target.matches("[data-open]") && target.value) location.assign(target.value);
});
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.id !== "compare") return;
  event.preventDefault();
  const [first, second] = [form.elements.first.value, form.elements.second.value].map(encodeURIComponent);
  if (first !== second) location.assign(`${form.dataset.base}${first}/${second}/${form.dataset.file}`);
});

// An element with data-follow, the version that it shows, is exchanged when the server has another version.
// Before, "view:follow" passes the new document to the page's own script; after, there is "view:followed".
async function follow() {
  const old = document.querySelector("[data-follow]");
  if (!old) return;
  const query = new URLSearchParams({ version: old.dataset.follow });
  const answer = await fetch(`?${query}`).catch(() => null); // the server may have ended
  if (answer?.status === 200) {
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    const element = next.getElementById(old.id);
    document.dispatchEvent(new CustomEvent("view:follow", { detail: next }));
    if (element) old.replaceWith(document.adoptNode(element));
    document.dispatchEvent(new CustomEvent("view:followed"));
  }
  setTimeout(follow, 2000);
}

document.addEventListener("keydown", key);
document.addEventListener("DOMContentLoaded", () => {
  byId("help").addEventListener("click", () => byId("keys").showModal());
  setTimeout(follow, 2000);
});
