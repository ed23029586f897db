// The page of a rollout: links into folded parts open them, and a running rollout grows in place.
"use strict";

(() => {
  // What a link leads to may stand in folded parts.
  function unfold() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let at = target; at; at = at.parentElement?.closest("details")) if (at.tagName === "DETAILS") at.open = true;
    find(target);
    target.scrollIntoView();
  }

  // What a search found there is unfolded and marked.
  function find(target) {
    const wanted = new URLSearchParams(location.search).get("q")?.toLowerCase();
    if (!wanted) return;
    const ranges = [];
    const texts = document.createTreeWalker(target, NodeFilter.SHOW_TEXT);
    while (texts.nextNode() && ranges.length < 500) {
      const text = texts.currentNode.data.toLowerCase();
      for (let at = text.indexOf(wanted); at >= 0 && text.length === texts.currentNode.length; at = text.indexOf(wanted, at + wanted.length)) {
        const range = new Range();
        range.setStart(texts.currentNode, at);
        range.setEnd(texts.currentNode, at + wanted.length);
        ranges.push(range);
        for (let up = texts.currentNode.parentElement; up !== target; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
      }
    }
    if (globalThis.CSS?.highlights && globalThis.Highlight) CSS.highlights.set("found", new Highlight(...ranges));
  }

  // Parts that changed are exchanged one by one, so that open details, the selection and the place stay.
  function merge(next) {
    let added = 0;
    for (const part of next.querySelectorAll("[data-stamp]")) {
      const old = document.getElementById(part.id);
      if (!old) {
        const parent = document.getElementById(part.parentElement.id);
        if (parent) parent.append(document.adoptNode(part));
        added += part.matches(".turn");
      } else if (old.dataset.stamp !== part.dataset.stamp) {
        const open = [...old.querySelectorAll("details")].map((one) => one.open);
        const now = [...part.querySelectorAll("details")];
        open.forEach((is, at) => now[at] && (now[at].open ||= is));
        old.replaceWith(document.adoptNode(part));
      }
    }
    return added;
  }

  let unseen = 0;
  document.addEventListener("view:follow", (event) => {
    const added = merge(event.detail);
    unseen = atEnd() ? 0 : unseen + added;
  });
  document.addEventListener("view:followed", () => {
    const link = document.getElementById("newer");
    const last = document.querySelector("#turns > :last-child");
    if (!link || !last || !unseen) return;
    link.textContent = `${unseen} new ${unseen === 1 ? "turn" : "turns"} ↓`;
    link.href = `#${last.id}`;
    link.hidden = false;
    link.addEventListener("click", () => {
      unseen = 0;
      link.hidden = true;
    });
  });

  const atEnd = () => innerHeight + scrollY >= document.body.scrollHeight - 80;

  addEventListener("hashchange", unfold);
  document.addEventListener("DOMContentLoaded", () => location.hash && unfold());
})();
