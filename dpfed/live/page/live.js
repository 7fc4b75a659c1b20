// Replaces the content with the one that the server sends. Open details, the focus and the scroll position stay.
"use strict";
const live = document.getElementById("live");
const line = document.getElementById("line");

function replace(html) {
  const open = new Set(Array.from(live.querySelectorAll("details[open]"), (one) => one.id));
  const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement.id : "";
  live.innerHTML = html;
  live.querySelectorAll("details").forEach((one) => { one.open = open.has(one.id); });
  if (focused) document.getElementById(focused)?.focus();
}

if (live && live.dataset.events) {
  const source = new EventSource(live.dataset.events);
  source.onopen = () => { line.textContent = "live"; line.className = "note"; };
  source.onerror = () => { line.textContent = "not live: the server is gone"; line.className = "note lost"; };
  source.onmessage = (event) => replace(JSON.parse(event.data));
}
